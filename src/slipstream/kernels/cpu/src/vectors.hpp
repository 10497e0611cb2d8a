// Vectors of float32 as wide as the processor's registers, and the functions of them that several kernels share.

#pragma once

#include <cstdint>
#include <cstring>
#include <unistd.h>  // some standard libraries include it: a clash of names must fail on all machines
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace vectors {
namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
using Floats = float __attribute__((vector_size(4 * LANES)));
using Words = int32_t __attribute__((vector_size(4 * LANES)));
using Quad = float __attribute__((vector_size(16)));

inline Floats load(const float* from) {
    Floats line;
    std::memcpy(&line, from, sizeof line);
    return line;
}

inline void store(float* to, Floats line) { std::memcpy(to, &line, sizeof line); }

// Adds upper lanes to lower ones until four are left.
inline Quad fold(Floats sum) {
#if defined(__AVX512F__)
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)sum), _mm512_extractf32x8_ps((__m512)sum, 1));
    return (Quad)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__)
    return (Quad)_mm_add_ps(_mm256_castps256_ps128((__m256)sum), _mm256_extractf128_ps((__m256)sum, 1));
#else
    return sum;
#endif
}

// The sum of all lanes.
inline float total(Floats sum) {
    const Quad a = fold(sum);
    return (a[0] + a[2]) + (a[1] + a[3]);
}

// Four totals at once, each by the same additions in the same order as `total`.
inline Quad totals(Floats first, Floats second, Floats third, Floats fourth) {
    const Quad a = fold(first), b = fold(second), c = fold(third), d = fold(fourth);
    const Quad ab = Quad{a[0], b[0], a[1], b[1]} + Quad{a[2], b[2], a[3], b[3]};
    const Quad cd = Quad{c[0], d[0], c[1], d[1]} + Quad{c[2], d[2], c[3], d[3]};
    return Quad{ab[0], ab[1], cd[0], cd[1]} + Quad{ab[2], ab[3], cd[2], cd[3]};
}

// The larger number of each lane.
inline Floats larger(Floats a, Floats b) {
    const Words more = a > b;
    return (Floats)(((Words)a & more) | ((Words)b & ~more));
}

// Whether any number of four vectors is above a bound.
inline bool above(const float* x, Floats bound) {
    constexpr int L = LANES;
    const auto any = (load(x) > bound) | (load(x + L) > bound) | (load(x + 2 * L) > bound) | (load(x + 3 * L) > bound);
    uint64_t words[sizeof any / 8], all = 0;
    std::memcpy(words, &any, sizeof any);
    for (uint64_t word : words) all |= word;
    return all != 0;
}

// e^x for x <= 0, to about one unit in the last place; 0 below the range of float32.
inline Floats exponential(Floats x) {
    const Floats low = Floats{} - 87.0f;
    const Words dead = x < low;
    x = (Floats)(((Words)low & dead) | ((Words)x & ~dead));
    const Floats shift = Floats{} + 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
    const Floats whole = x * 1.44269504f + shift;
    const Floats n = whole - shift;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Words power = ((Words)whole - (Words)shift + 127) << 23;
    return (Floats)((Words)(p * (Floats)power) & ~dead);
}

}  // namespace
}  // namespace vectors
