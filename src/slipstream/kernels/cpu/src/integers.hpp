// Products in whole numbers, included by linear.hpp: weights that are whole numbers of four or eight bits by groups of 32
// inputs, each group with scales (and a floor) of its own, meet activations as whole numbers of sixteen bits, or of eight in
// a library of its own (ROW_BITS), which is another target.
//
// The weights are reproduced exactly. An activation is rounded to one of 65,025 steps between the largest numbers of its
// group of 32: products are some forty times closer than with activations in bfloat16, and their sums exact. Sixteen bits
// are two times eight, since processors multiply bytes four at a time; with eight, 255 steps are left and half of the
// products. Sums being exact, it does not matter to a bit of the result which instructions make them: what follows, scaling
// and adding up spans, is one order of operations,
//
//   sum = fma(float(whole[p]) * step, scale[p], sum)   for every part p of the span, in order
//   sum = fma(floor, total, sum)                       where there is a floor
//
// in float32, span by span: whole[p] is the exact sum of a part's products, `step` what one step of the activations is
// worth, `total` what the activations of the span add up to. Then comes the bias.

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
#ifndef ROW_BITS
#define ROW_BITS 16  // of an activation
#endif
constexpr bool BYTES = ROW_BITS == 8;
constexpr int FULL = BYTES ? 127 : 127 * 256;
#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
constexpr int HELD = BYTES ? 2 * MOST : MOST;  // rows that lie together: as many as a tile has lines for
#else
constexpr int HELD = MOST;
#endif

// What one step is worth where the largest number is `top`. Of eight bits, it has two digits less than a float32 could: then
// a sum of products may begin at 1.5 * 2^23, where its bits are those of a float32, and what that adds is taken off exactly.
INLINE float step_of(float top) {
    float step = top / FULL;
    if constexpr (BYTES) {
        uint32_t bits;
        std::memcpy(&bits, &step, sizeof bits);
        bits &= ~3u;
        std::memcpy(&step, &bits, sizeof bits);
    }
    return step;
}

// A span of SIDE outputs. With eight bits, byte 4 (SIDE j + o) + i: output o, input 4 j + i; with four, that input below and
// input 16 + 4 j + i above. Scales are of all inputs (one part) or of the first 16 and the others (two parts), in float16 or
// float32; the floor, where there is one, lies behind them.
template <int BITS_, int PARTS_, bool FLOOR_, class Scale>
struct Block {
    static constexpr int BITS = BITS_, PARTS = PARTS_;
    static constexpr bool FLOOR = FLOOR_;
    std::conditional_t<BITS == 8, int8_t, uint8_t> number[SIDE * SPAN * BITS / 8];
    Scale scale[PARTS + FLOOR][SIDE];
};
using Four = Block<4, 1, true, uint16_t>;
using Eight = Block<8, 1, false, uint16_t>;
using FourK = Block<4, 1, true, float>;  // as GGUF's K types need them: scales are products of two numbers
using FiveK = Block<8, 1, true, float>;
using SixK = Block<8, 2, false, float>;

#if !defined(INTEGERS)  // weights of these kinds are not made here

INLINE void wholes(const float*, float*, int64_t, int64_t, int64_t, int64_t, int64_t) {}
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
