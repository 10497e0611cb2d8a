// Integer products, included by linear.hpp. Weights are integers of 4 or 8 bits in blocks (spans) of 32 inputs, each with
// its own scales and possibly a floor. Activations are rounded to integers of 16 bits, or of 8 bits if ROW_BITS is 8, which
// is a separate library.
//
// Weights are represented exactly. An activation of 16 bits has one of 65,025 values within the range of its span, which is
// about forty times as precise as bfloat16. It is stored as two bytes, because processors multiply bytes four at a time. An
// activation of 8 bits has 255 values and needs half of the products. Integer sums are exact, so all instruction sets give
// the same result. Scaling and adding up spans has one order of operations,
//
//   sum = fma(float(whole[p]) * step, scale[p], sum)   for every part p of the span, in order
//   sum = fma(floor, total, sum)                       where there is a floor
//
// in float32, span by span. whole[p] is the exact sum of the products of part p, `step` the size of one step of the
// activations, `total` the sum of the activations of the span. The bias is added at the end.

#if defined(NEON) && defined(__ARM_FEATURE_DOTPROD)
#define INTEGERS
constexpr int SIDE = 4;  // outputs that are stored interleaved
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
constexpr int HELD = BYTES ? 2 * MOST : MOST;  // rows that are stored together: the rows of a tile register
#else
constexpr int HELD = MOST;
#endif

// The size of one step if the largest number is `top`. With 8 bits it has fewer significant bits than a float32, so that a
// sum can start at 1.5 * 2^23, where integer and float32 bits agree, and that offset can be subtracted exactly.
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

// Weights of SIDE outputs in one span, or in eight spans that share factors. With 8 bits, byte 4 (SIDE j + o) + i of a span
// holds input 4 j + i of output o. With 4 bits, the lower half of that byte holds this input and the upper half input
// 16 + 4 j + i. With 6 bits the upper bits of byte 4 (SIDE (3 h + j) + o) + i hold input 16 h + 4 j + i, for j < 3. The lower
// two bits of these three bytes hold input 16 h + 12 + i, the upper ones first. Unpacked, such a number stays in the upper bits
// of its byte, so it is four times as large and its factor a quarter.
//
// A span has one scale, or one for each half of its inputs (two parts). The floor, if any, follows the scales. They are float16
// or float32 numbers, or bytes that are multiplied by the factor of all scales or of all floors, a float16. That product is
// exact in float32.
template <int BITS_, int PARTS_, bool FLOOR_, class Scale>
struct Block {
    static constexpr int BITS = BITS_, PARTS = PARTS_;
    static constexpr bool FLOOR = FLOOR_, FACTORS = std::is_same_v<Scale, int8_t>;
    static constexpr int SPANS = FACTORS ? 8 : 1;
    using Byte = std::conditional_t<BITS == 8, int8_t, uint8_t>;
    Byte number[SPANS][SIDE * SPAN * BITS / 8];
    Scale scale[SPANS][PARTS + FLOOR][SIDE];
    uint16_t factor[FACTORS ? 1 + FLOOR : 0][SIDE];
};
using Four = Block<4, 1, true, uint16_t>;
using Eight = Block<8, 1, false, uint16_t>;
using FourK = Block<4, 1, true, int8_t>;  // GGUF's K types
using FiveK = Block<8, 1, true, float>;
using SixK = Block<6, 2, false, int8_t>;

template <class Weight>
constexpr int64_t SPAN_BYTES = sizeof(Weight) / Weight::SPANS;  // of a span with its share of the factors

// The blocks of a group of outputs.
template <class Weight>
INLINE int64_t blocks_of(const Product& job) {
    return job.in / (SPAN * Weight::SPANS);
}

// One span of the weights at `block`, which other blocks follow.
template <class Weight>
struct SpanWeights {
    const Weight& block;
    const int64_t at;
    const typename Weight::Byte* const number;
    INLINE SpanWeights(const Weight* first, int64_t span)
        : block(first[static_cast<uint64_t>(span) / Weight::SPANS]),
          at(static_cast<uint64_t>(span) % Weight::SPANS),
          number(block.number[at]) {}
    INLINE SpanWeights(const Weight& block, int64_t at) : block(block), at(at), number(block.number[at]) {}
};

#if !defined(INTEGERS)  // no integer weights on this processor

constexpr int64_t ROW_FLOATS = 0;
INLINE void wholes(const float*, float*, int64_t, int64_t, int64_t, int64_t, int64_t) {}
INLINE void nothing(float*, int64_t, int64_t, int64_t, int64_t) {}
template <class Weight>
void integers(const Product&, int64_t, int64_t, int64_t, int64_t) {}

#else
#include "scales.hpp"
#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include "integers_avx512.hpp"
#else
#if defined(NEON)
#include "integers_neon.hpp"
#else
#include "integers_avx2.hpp"
#endif

INLINE void nothing(float*, int64_t, int64_t, int64_t, int64_t) {}

template <class Weight, int ROWS = MOST>
void block_of(const Product& job, const Weight* weight, int64_t row, int64_t group) {
    if constexpr (ROWS > 1)
        if (job.rows - row < ROWS) return block_of<Weight, ROWS - 1>(job, weight, row, group);
    rows_by<Weight, ROWS>(job, weight, row, group);
}

template <class Weight>
void integers(const Product& job, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const int64_t blocks = blocks_of<Weight>(job);
    const Weight* weight = static_cast<const Weight*>(job.weight) + first * blocks;
    int64_t group = first;
    if constexpr (constexpr int SOME = AT_ONCE<Weight>; SOME > 1)
        for (; bottom - top == 1 && group + SOME <= last; group += SOME, weight += SOME * blocks)
            rows_by<Weight, 1, SOME>(job, weight, top, group);
    for (; group < last; ++group, weight += blocks)
        for (int64_t row = top; row < bottom; row += MOST) block_of(job, weight, row, group);
}
#endif
#endif
