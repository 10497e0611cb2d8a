// y = x Wᵀ + b for few rows of x, in float32.
//
//   x [rows, in], y [rows, out], b [out]   float32, row-major
//   W [groups, in, GROUP]                  GROUP outputs interleaved: one line of GROUP numbers for every input
//
// Vector lanes run over outputs, so each output is one chain of multiply-adds over the inputs in their order, for any number
// of rows or threads. So the result of a row depends on that row alone. One row is bound by reading W, so bfloat16 weights
// stay two bytes in memory and are widened in registers. Eight rows are bound by arithmetic, so each loaded weight is
// multiplied with all rows.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "matrix.hpp"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define NEON
#endif
#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

#define INLINED __attribute__((always_inline))
#define INLINE inline INLINED

namespace linear {
namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#else
constexpr int LANES = 4, REGISTERS = 32;
#endif
constexpr int GROUP = 2 * LANES;
constexpr int MOST = REGISTERS == 32 ? 8 : 6;  // rows whose sums fit in registers together with one group of weights
constexpr int DIRECT = LANES == 4 ? 7 : MOST;  // rows up to which widening in registers is faster (measured)
constexpr int64_t TILE = 1 << 17;              // numbers of x that stay in the second-level cache

using Floats = float __attribute__((vector_size(4 * LANES)));
using Half = float __attribute__((vector_size(2 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));

// One line of a group. A bfloat16 is the upper half of a float32. Word i holds output i in its lower half and output LANES + i
// in its upper half.
struct Brain {
    Words words;
#ifdef NEON  // the same bits; measured: with permutations instead of shifts the loop is a tenth faster
    INLINE Floats low() const { return (Floats)vtrn1q_u16(vdupq_n_u16(0), (uint16x8_t)words); }
    INLINE Floats high() const { return (Floats)vtrn2q_u16(vdupq_n_u16(0), (uint16x8_t)words); }
#else
    INLINE Floats low() const { return (Floats)(words << 16); }
    INLINE Floats high() const { return (Floats)(words & 0xffff0000u); }
#endif
};
struct Single {
    Floats first, second;
    INLINE Floats low() const { return first; }
    INLINE Floats high() const { return second; }
};

// The storage format of a weight; numbered as `KINDS` in linear.py.
enum Kind : int64_t { SINGLE, BRAIN, FOUR, EIGHT, FOUR_K, FIVE_K, SIX_K };  // from FOUR on: integers

// What to compute: y = x * weight + bias, for some rows of x.
struct Product {
    const float* given;  // x as passed in
    float* x;            // blocks of MOST rows; in each, one line with a number of every row for each input
    const void* weight;
    const float* bias;
    float* y;
    int64_t rows, in, out, groups, tile, tiles, unit, chunks;
    const char* end;  // where the weights of this piece end,
    int64_t jump;     // and how far from there those begin that the thread reads next
    Kind kind;
    bool onto;  // add the result to y
};

// Memory that a thread keeps from call to call.
struct Scratch {
    float* data = nullptr;
    size_t size = 0;
    float* of(size_t wanted) {
        if (wanted > size) {
            std::free(data);
            size = (wanted + 15) / 16 * 16;
            data = static_cast<float*>(std::aligned_alloc(64, size * sizeof(float)));
        }
        return data;
    }
    ~Scratch() { std::free(data); }
};

constexpr int width(int rows) { return rows == 1 ? 1 : (rows + 3) / 4 * 4; }  // of a line of x
constexpr int groups_at_once(int rows) { return rows <= REGISTERS / 16 ? 4 : rows <= REGISTERS / 8 ? 2 : 1; }

// f(0), f(1), … f(N - 1) with compile-time constants: sums stay in registers only if all their indices are constant.
template <class F, int... I>
INLINE void each(F f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
INLINE void each(F f) {
    each(f, std::make_integer_sequence<int, N>{});
}

// sum[r] += weight * x[r] for all rows, as fused multiply-adds if the processor has them.
template <int ROWS>
INLINE void add(Floats (&sum)[ROWS], Floats weight, const float* x) {
    each<ROWS>([&](auto r) {
#ifdef NEON
        if constexpr (ROWS > 1)  // otherwise the compiler loads single numbers, which is a fifth slower
            sum[r] = vfmaq_laneq_f32(sum[r], weight, vld1q_f32(x + r / 4 * 4), r % 4);
        else
#endif
            sum[r] += weight * x[r];
    });
}

// Write the product of a row with SIZE outputs from `first` on.
template <int SIZE>
INLINE void finish(const Product& job, float* sum, int64_t row, int64_t first) {
    const int64_t count = std::min<int64_t>(SIZE, job.out - first);
    float* y = job.y + row * job.out + first;
    if (count == SIZE) {
        using Line = std::conditional_t<(SIZE < LANES), Half, Floats>;  // AVX-512 without VNNI interleaves eight outputs
        for (size_t n = 0; n < SIZE; n += sizeof(Line) / sizeof(float)) {
            Line line, other;
            std::memcpy(&line, sum + n, sizeof line);
            if (job.bias) std::memcpy(&other, job.bias + first + n, sizeof other), line += other;
            if (job.onto) std::memcpy(&other, y + n, sizeof other), line += other;
            std::memcpy(y + n, &line, sizeof line);
        }
        return;
    }
    for (int64_t n = 0; job.bias && n < count; ++n) sum[n] += job.bias[first + n];
    for (int64_t n = 0; job.onto && n < count; ++n) sum[n] += y[n];
    std::memcpy(y, sum, count * sizeof(float));
}

// ROWS rows by GROUPS groups of the result. `next`: weights of the next block, which are prefetched.
template <class Weight, int ROWS, int GROUPS, class Stored>
INLINE void block(const Product& job, const Weight* weight, const Stored* next, const float* x, int64_t row, int64_t group) {
    Floats low[GROUPS][ROWS] = {}, high[GROUPS][ROWS] = {};
    for (int64_t k = 0; k < job.in; ++k) {
        __builtin_prefetch(next + GROUPS * k, 0, GROUPS > 1 ? 2 : 3);  // many groups would fill the first-level cache
        each<GROUPS>([&](auto g) {
            const Weight& line = weight[g * job.in + k];
            add(low[g], line.low(), x + k * width(ROWS));
            add(high[g], line.high(), x + k * width(ROWS));
        });
    }
    each<GROUPS * ROWS>([&](auto i) {
        Floats line[2] = {low[i / ROWS][i % ROWS], high[i / ROWS][i % ROWS]};
        finish<GROUP>(job, reinterpret_cast<float*>(line), row + i % ROWS, (group + i / ROWS) * GROUP);
    });
}

// Groups `group` to `end` for the rows of one block; their weights are at `weight`, and were read from `stored`.
template <class Weight, class Stored, int ROWS = MOST>
void strip(const Product& job, const Weight* weight, const Stored* stored, int64_t row, int64_t group, int64_t end) {
    if constexpr (ROWS > 1)
        if (job.rows - row < ROWS) return strip<Weight, Stored, ROWS - 1>(job, weight, stored, row, group, end);
    const float* x = job.x + row / MOST * width(MOST) * job.in;
    const auto advance = [&](auto groups) {
        for (; group + groups <= end; group += groups, weight += groups * job.in, stored += groups * job.in)
            block<Weight, ROWS, groups>(job, weight, stored + groups * job.in, x, row, group);
    };
    advance(std::integral_constant<int, groups_at_once(ROWS)>{});
    advance(std::integral_constant<int, 1>{});
}

// Rows of a tile by groups of a chunk.
template <class Weight>
void floats(const Product& job, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    static thread_local Scratch scratch;
    const Weight* weight = static_cast<const Weight*>(job.weight) + first * job.in;
    if (bottom - top <= DIRECT) return strip(job, weight, weight, top, first, last);
    for (int64_t group = first; group < last; ++group, weight += job.in) {
        const Single* wide;
        if constexpr (std::is_same_v<Weight, Single>) {
            wide = weight;
        } else {  // widened once for many rows
            Single* lines = reinterpret_cast<Single*>(scratch.of(job.in * GROUP));
            for (int64_t k = 0; k < job.in; ++k) lines[k] = {weight[k].low(), weight[k].high()};
            wide = lines;
        }
        for (int64_t row = top; row < bottom; row += MOST) strip(job, wide, weight, row, group, group + 1);
    }
}

#include "integers.hpp"

// Interleave the rows of one block, from input `first` to `last`, so that the numbers multiplied with one weight are
// contiguous. For integer weights, round the rows to integers.
INLINE void arrange(Kind kind, const float* given, float* x, int64_t rows, int64_t in, int64_t row, int64_t first, int64_t last) {
    const int64_t here = std::min<int64_t>(MOST, rows - row);
    if (kind >= FOUR) {
        for (int64_t r = row; r < row + here; ++r) wholes(given + r * in, x, rows, in, r, first, last);
        if (row + here == rows) nothing(x, in, rows, first, last);
        return;
    }
    const float* from = given + row * in;
    float* to = x + row / MOST * width(MOST) * in;
    const auto copy = [&](auto count) {
        for (int64_t k = first; k < last; ++k)
            for (int64_t r = 0; r < count; ++r) to[k * width(count) + r] = from[r * in + k];
    };
    if (here == MOST) copy(std::integral_constant<int, MOST>{});
    else copy(static_cast<int>(here));
}

INLINE void arrange(Kind kind, const float* given, float* x, int64_t rows, int64_t in, int64_t row) {
    arrange(kind, given, x, rows, in, row, 0, in);
}

// The size of arranged rows: of floats, or of integers.
int64_t room(int64_t rows, int64_t in) {
    const int64_t blocks = (rows + MOST - 1) / MOST, spans = (in + SPAN - 1) / SPAN;
    return blocks * std::max<int64_t>(width(MOST) * in, MOST * spans * ROW_FLOATS);
}

#include "chunks.hpp"

}  // namespace
}  // namespace linear
