// A weight of a product as the kernels are given it.

#pragma once

#include <cstdint>

namespace linear {

// Laid out as `MatrixStruct` in linear.py.
struct Matrix {
    const void* weight;
    const float* bias;
    int64_t in, out, kind;
};

}  // namespace linear
