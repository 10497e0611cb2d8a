// y = x Wᵀ + b for few rows of x, in float32.
//
//   x [rows, in], y [rows, out], b [out]   float32, row-major
//   W [groups, in, GROUP]                  GROUP outputs side by side, one line of them for every input
//
// Vector lanes run over outputs, so each output is one chain of multiply-adds over the inputs in their order, whatever
// the number of rows or threads: a row's bits depend on that row alone. One row is bound by reading W, which is why
// bfloat16 weights stay two bytes in memory and are widened in registers; eight rows are bound by arithmetic, which is
// why a weight that was read meets all of them while it is there.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define NEON
#endif

#define INLINE inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#else
constexpr int LANES = 4, REGISTERS = 32;
#endif
constexpr int GROUP = 2 * LANES;
constexpr int MOST = REGISTERS == 32 ? 8 : 6;  // rows whose sums fit the registers beside one group of weights
constexpr int DIRECT = LANES == 4 ? 7 : MOST;  // rows up to which widening in passing is the faster way, by measurement
constexpr int64_t TILE = 1 << 17;              // numbers of x that stay in the second-level cache

using Floats = float __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));

// One line of a group. A bfloat16 is the upper half of a float32; word i holds output i below output LANES + i.
struct Brain {
    Words words;
#ifdef NEON  // the same bits; permutations get along with multiply-adds better than shifts do, by a tenth
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

// A weight and what is known of it; laid out as `Matrix` in cpu_linear.py.
struct Matrix {
    const void* weight;
    const float* bias;
    int64_t in, out, halved;
};

struct Job {
    const float* given;  // x as it came
    float* x;            // blocks of MOST rows, in each one line of a number per row for every input
    const void* weight;
    const float* bias;
    float* y;
    int64_t rows, in, out, groups, tile, tiles, chunk, chunks;
    std::atomic<int64_t> next{0};
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

// f(0), f(1), … f(N - 1), each number known to the compiler: sums stay in registers only if all their indices are.
template <class F, int... I>
INLINE void each(F f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
INLINE void each(F f) {
    each(f, std::make_integer_sequence<int, N>{});
}

// sum[r] += weight * x[r] for all rows: the only arithmetic there is, fused where the processor can.
template <int ROWS>
INLINE void add(Floats (&sum)[ROWS], Floats weight, const float* x) {
    each<ROWS>([&](auto r) {
#ifdef NEON
        if constexpr (ROWS > 1)  // left to itself, the compiler loads scalar by scalar and is a fifth slower
            sum[r] = vfmaq_laneq_f32(sum[r], weight, vld1q_f32(x + r / 4 * 4), r % 4);
        else
#endif
            sum[r] += weight * x[r];
    });
}

// ROWS rows by GROUPS groups of the result. Meanwhile `next`, what the next block will read, comes nearer.
template <class Weight, int ROWS, int GROUPS, class Stored>
INLINE void block(const Job& job, const Weight* weight, const Stored* next, const float* x, int64_t row, int64_t group) {
    Floats low[GROUPS][ROWS] = {}, high[GROUPS][ROWS] = {};
    for (int64_t k = 0; k < job.in; ++k) {
        __builtin_prefetch(next + GROUPS * k, 0, GROUPS > 1 ? 2 : 3);  // many groups would crowd the first-level cache
        each<GROUPS>([&](auto g) {
            const Weight& line = weight[g * job.in + k];
            add(low[g], line.low(), x + k * width(ROWS));
            add(high[g], line.high(), x + k * width(ROWS));
        });
    }
    each<GROUPS * ROWS>([&](auto i) {
        const Floats line[2] = {low[i / ROWS][i % ROWS], high[i / ROWS][i % ROWS]};
        const int64_t first = (group + i / ROWS) * GROUP, count = std::min<int64_t>(GROUP, job.out - first);
        float* y = job.y + (row + i % ROWS) * job.out + first;
        std::memcpy(y, line, count * sizeof(float));
        for (int64_t n = 0; job.bias && n < count; ++n) y[n] += job.bias[first + n];
    });
}

// Groups `group` to `end` for the rows of one block; their weights are at `weight`, and were read from `stored`.
template <class Weight, class Stored, int ROWS = MOST>
void strip(const Job& job, const Weight* weight, const Stored* stored, int64_t row, int64_t group, int64_t end) {
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

// What one thread does: take pieces of the result, rows of a tile by groups of a chunk, until none is left.
template <class Weight>
void work(void* data) {
    static thread_local Scratch scratch;
    Job& job = *static_cast<Job*>(data);
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tiles * job.chunks;) {
        const int64_t top = i / job.chunks * job.tile, bottom = std::min(job.rows, top + job.tile);
        const int64_t first = i % job.chunks * job.chunk, last = std::min(job.groups, first + job.chunk);
        const Weight* weight = static_cast<const Weight*>(job.weight) + first * job.in;
        if (bottom - top <= DIRECT) {
            strip(job, weight, weight, top, first, last);
            continue;
        }
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
}

// Lay the rows of every block side by side: the numbers that meet one weight are then read together.
void arrange(void* data) {
    Job& job = *static_cast<Job*>(data);
    for (int64_t row; (row = MOST * job.next.fetch_add(1, std::memory_order_relaxed)) < job.rows;) {
        const float* from = job.given + row * job.in;
        float* to = job.x + row / MOST * width(MOST) * job.in;
        const auto copy = [&](auto count) {
            for (int64_t k = 0; k < job.in; ++k)
                for (int64_t r = 0; r < count; ++r) to[k * width(count) + r] = from[r * job.in + k];
        };
        if (job.rows - row >= MOST) copy(std::integral_constant<int, MOST>{});
        else copy(static_cast<int>(job.rows - row));
    }
}

}  // namespace

extern "C" int slipstream_lanes() { return LANES; }

// `parallel` runs a function on a team of threads, as GOMP_parallel does.
extern "C" void slipstream_linear(const Matrix* matrix, const float* x, float* y, int64_t rows, unsigned threads,
                                  void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    static thread_local Scratch scratch;
    const int64_t in = matrix->in, groups = (matrix->out + GROUP - 1) / GROUP;
    const int64_t tile = std::max<int64_t>(MOST, TILE / in / MOST * MOST), tiles = (rows + tile - 1) / tile;
    const int64_t share = groups / (threads * 8), chunk = share ? (share + 3) / 4 * 4 : 1;
    float* arranged = rows == 1 ? const_cast<float*>(x) : scratch.of((rows + MOST - 1) / MOST * width(MOST) * in);
    Job job{x, arranged, matrix->weight, matrix->bias, y, rows, in, matrix->out, groups, tile, tiles, chunk,
            (groups + chunk - 1) / chunk};
    const auto run = [&](void (*function)(void*), bool alone) {
        job.next = 0;
        if (alone) function(&job);
        else parallel(function, &job, threads, 0);
    };
    if (rows > 1) run(arrange, threads == 1 || rows <= 2 * MOST);
    run(matrix->halved ? work<Brain> : work<Single>, threads == 1);
}
