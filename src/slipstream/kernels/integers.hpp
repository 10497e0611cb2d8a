// Products in whole numbers, included by linear.hpp: weights that are whole numbers of four or eight bits by groups of 32
// inputs, each group with a scale (and a floor) of its own, meet activations as whole numbers of sixteen.
//
// The weights are reproduced exactly. An activation is rounded to one of 65,025 steps between the largest numbers of its
// group of 32: products are some forty times closer than with activations in bfloat16, and their sums exact. Sixteen bits
// are two times eight, since processors multiply bytes four at a time. Sums being exact, it does not matter to a bit of
// the result which instructions make them: what follows, scaling and adding up spans, is one order of operations.

#if defined(NEON) && defined(__ARM_FEATURE_DOTPROD)
#define INTEGERS
constexpr int SIDE = 4;  // outputs side by side
#elif defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define INTEGERS
constexpr int SIDE = 16;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define INTEGERS
constexpr int SIDE = 8;
#else
constexpr int SIDE = 4;
#endif
constexpr int SPAN = 32;  // inputs that share a scale
constexpr int FULL = 127 * 256;

struct Four {  // byte 4 (SIDE j + o) + i: output o, inputs 4 j + i below and 16 + 4 j + i above
    uint8_t number[SIDE * SPAN / 2];
    uint16_t scale[SIDE], floor[SIDE];  // float16
};

struct Eight {  // byte 4 (SIDE j + o) + i: output o, input 4 j + i
    int8_t number[SIDE * SPAN];
    uint16_t scale[SIDE];
};

#if !defined(INTEGERS)  // weights of these kinds are not made here

INLINE void wholes(const float*, float*, int64_t, int64_t, int64_t, int64_t) {}
INLINE void nothing(float*, int64_t, int64_t, int64_t, int64_t) {}
template <class Weight>
void integers(const Job&, int64_t, int64_t, int64_t, int64_t) {}

#elif defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include "integers_avx512.hpp"
#else
#if defined(NEON)
#include "integers_neon.hpp"
#else
#include "integers_avx2.hpp"
#endif

INLINE void nothing(float*, int64_t, int64_t, int64_t, int64_t) {}

template <class Weight, int ROWS = MOST>
void block_of(const Job& job, const Weight* weight, int64_t row, int64_t group) {
    if constexpr (ROWS > 1)
        if (job.rows - row < ROWS) return block_of<Weight, ROWS - 1>(job, weight, row, group);
    rows_by<Weight, ROWS>(job, weight, row, group);
}

template <class Weight>
void integers(const Job& job, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const Weight* weight = static_cast<const Weight*>(job.weight) + first * (job.in / SPAN);
    for (int64_t group = first; group < last; ++group, weight += job.in / SPAN)
        for (int64_t row = top; row < bottom; row += MOST) block_of(job, weight, row, group);
}
#endif
