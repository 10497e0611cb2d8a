// A weight of a product as the kernels are given it.

#pragma once

#include <cstdint>
#include <unistd.h>  // as in some standard libraries: a name of ours that it has as well would fail only there

namespace linear {

// Laid out as `MatrixStruct` in linear.py.
struct Matrix {
    const void* weight;
    const float* bias;
    int64_t in, out, kind;
};

}  // namespace linear
