// A weight of a product as the kernels are given it.

#pragma once

#include <cstdint>
#include <unistd.h>  // some standard libraries include it: a clash of names must fail on all machines

namespace linear {

// Laid out as `MatrixStruct` in linear.py.
struct Matrix {
    const void* weight;
    const float* bias;
    int64_t in, out, kind;
};

}  // namespace linear
