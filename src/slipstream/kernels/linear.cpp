// y = x Wᵀ + b for few rows of x, in float32.
//
//   x [rows, in], y [rows, out], b [out]   float32, row-major
//   W [groups, in, GROUP]                  GROUP outputs side by side, one line of them for every input
//
// Vector lanes run over outputs, so each output is one chain of multiply-adds over the inputs in their order, whatever
// the number of rows or threads: a row's bits depend on that row alone. One row is bound by reading W, which is why
// bfloat16 weights stay two bytes in memory and are widened in registers; eight rows are bound by arithmetic, which is
// why every weight that is read meets all of them while it is there.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
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
constexpr int64_t TILE = 1 << 17;              // numbers of x that stay in the second-level cache

using Floats = float __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));

// One line of a group. A bfloat16 is the upper half of a float32; word i holds output i below output LANES + i.
struct Brain {
    Words words;
#ifdef NEON  // the same bits; permutations share the pipes with multiply-adds better than shifts do, by a tenth
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

struct Job {
    const float* x;  // lines of one number per row, blocks of MOST rows
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
        if constexpr (ROWS > 1)  // left to itself, the compiler loads scalar by scalar and is a third slower
            sum[r] = vfmaq_laneq_f32(sum[r], weight, vld1q_f32(x + r / 4 * 4), r % 4);
        else
#endif
            sum[r] += weight * x[r];
    });
}

// ROWS rows, from line `x` on, by GROUPS groups.
template <class Weight, int ROWS, int GROUPS>
INLINE void block(const Job& job, const Weight* weight, const float* x, int64_t row, int64_t group) {
    Floats low[GROUPS][ROWS] = {}, high[GROUPS][ROWS] = {};
    for (int64_t k = 0; k < job.in; ++k)
        each<GROUPS>([&](auto g) {
            const Weight& line = weight[g * job.in + k];
            add(low[g], line.low(), x + k * width(ROWS));
            add(high[g], line.high(), x + k * width(ROWS));
        });
    each<GROUPS * ROWS>([&](auto i) {
        const Floats line[2] = {low[i / ROWS][i % ROWS], high[i / ROWS][i % ROWS]};
        const int64_t first = (group + i / ROWS) * GROUP, count = std::min<int64_t>(GROUP, job.out - first);
        float* y = job.y + (row + i % ROWS) * job.out + first;
        std::memcpy(y, line, count * sizeof(float));
        for (int64_t n = 0; job.bias && n < count; ++n) y[n] += job.bias[first + n];
    });
}

// Groups `group` to `end`, whose weights start at `weight`, for the rows of one block.
template <class Weight, int ROWS = MOST>
void strip(const Job& job, const Weight* weight, int64_t row, int64_t group, int64_t end) {
    const int64_t rows = std::min<int64_t>(MOST, job.rows - row);
    if constexpr (ROWS > 1)
        if (rows < ROWS) return strip<Weight, ROWS - 1>(job, weight, row, group, end);
    constexpr int GROUPS = groups_at_once(ROWS);
    const float* x = job.x + row / MOST * width(MOST) * job.in;
    for (; group + GROUPS <= end; group += GROUPS, weight += GROUPS * job.in)
        block<Weight, ROWS, GROUPS>(job, weight, x, row, group);
    if constexpr (GROUPS > 1)
        for (; group < end; ++group, weight += job.in) block<Weight, ROWS, 1>(job, weight, x, row, group);
}

// What one thread does: take pieces of the result, rows of a tile by groups of a chunk, until none is left.
template <class Weight>
void work(void* data) {
    Job& job = *static_cast<Job*>(data);
    static thread_local Scratch scratch;
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tiles * job.chunks;) {
        const int64_t top = i / job.chunks * job.tile, bottom = std::min(job.rows, top + job.tile);
        const int64_t first = i % job.chunks * job.chunk, last = std::min(job.groups, first + job.chunk);
        const Weight* weight = static_cast<const Weight*>(job.weight) + first * job.in;
        if (bottom - top <= MOST) {
            strip(job, weight, top, first, last);
            continue;
        }
        Single* wide = reinterpret_cast<Single*>(scratch.of(job.in * GROUP));  // many rows: widen once for all
        for (int64_t group = first; group < last; ++group, weight += job.in) {
            for (int64_t k = 0; k < job.in; ++k) wide[k] = {weight[k].low(), weight[k].high()};
            for (int64_t row = top; row < bottom; row += MOST) strip(job, wide, row, group, group + 1);
        }
    }
}

// Lay the rows of every block side by side: the numbers that meet one weight are then read together.
const float* side_by_side(const float* x, int64_t rows, int64_t in) {
    static thread_local Scratch scratch;
    if (rows == 1) return x;
    float* all = scratch.of((rows + MOST - 1) / MOST * width(MOST) * in);
    for (int64_t row = 0; row < rows; row += MOST) {
        const int64_t count = std::min<int64_t>(MOST, rows - row), step = width(count);
        float* to = all + row / MOST * width(MOST) * in;
        for (int64_t k = 0; k < in; ++k)
            for (int64_t r = 0; r < count; ++r) to[k * step + r] = x[(row + r) * in + k];
    }
    return all;
}

}  // namespace

extern "C" int slipstream_lanes() { return LANES; }

// `parallel` runs a function on a team of threads, as GOMP_parallel does.
extern "C" void slipstream_linear(const float* x, const void* weight, const float* bias, float* y, int64_t rows, int64_t in,
                                  int64_t out, int brain, unsigned threads,
                                  void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    const int64_t groups = (out + GROUP - 1) / GROUP, tile = std::max<int64_t>(MOST, TILE / in / MOST * MOST);
    const int64_t chunk = 4 * std::max<int64_t>(1, groups / (threads * 32));
    Job job{side_by_side(x, rows, in), weight, bias, y, rows, in, out, groups, tile, (rows + tile - 1) / tile, chunk,
            (groups + chunk - 1) / chunk};
    void (*function)(void*) = brain ? work<Brain> : work<Single>;
    if (threads > 1) parallel(function, &job, threads, 0);
    else function(&job);
}
