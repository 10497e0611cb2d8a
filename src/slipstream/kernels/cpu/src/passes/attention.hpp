// Attention of packed tokens over a cache of rows, in float32.
//
//   query  [tokens, heads, dim]                   out [tokens, heads, dim_v]     row-major
//   keys   [rows, kv_heads, places, dim]          values [rows, kv_heads, places, dim_v]
//   row_step, head_step: places from one row, and from one head, to the next
//   seen   [tokens, used], bytes                  the places of its row that a token attends to; null: all of them
//
// A token's sums run over its visible places in their order, and over nothing else. So its result does not depend on the
// batch or on where the places lie. Only memory reads are shared: up to TOKENS neighbouring tokens of one row are computed
// together over a tile of places that fits the first-level cache, each with its own sums, and the heads of a group share the
// registers that keys and values are loaded into.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "../vectors.hpp"

namespace attention {
namespace {

using namespace vectors;

constexpr int WIDE = 4;    // vectors of a value that are summed at a time
constexpr int TOKENS = 8;  // of one row that are computed together
constexpr int HEADS_AT_ONCE = 4;
constexpr int64_t AHEAD = 12;  // prefetch distance for values, in places
constexpr int64_t TILE = 64;  // places per tile: 64 keys of 64 dimensions are half of a first-level cache
#define EACH _Pragma("GCC unroll 8")

struct Job {
    const float *query, *keys, *values;
    const uint8_t* seen;
    const int64_t* row;
    float* out;
    int64_t tokens, heads, kv_heads, dim, dim_v, row_step, head_step, used;
    float scale, cap;  // cap 0: none
    int64_t threads;
    const int64_t* start;  // where each run of tokens begins, and the end
    int64_t runs;
    std::atomic<int64_t> next{0};
};

// Softmax weights of one head of one token, not normalised; returns their sum. Never inlined: a compiler may fuse
// multiplications and additions differently in each inlined copy, and the result must not depend on how heads are divided.
__attribute__((noinline)) float weigh(float* score, int64_t n, int64_t padded) {
    std::fill(score + n, score + padded, -std::numeric_limits<float>::infinity());
    Floats most = load(score);
    for (int64_t i = LANES; i < padded; i += LANES) most = larger(load(score + i), most);
#if defined(__AVX512F__)
    const float best = _mm512_reduce_max_ps((__m512)most);
#else
    float best = most[0];
    for (int i = 1; i < LANES; ++i) best = std::max(best, most[i]);
#endif
    Floats sum = {};
    for (int64_t i = 0; i < padded; i += LANES) {
        const Floats weight = exponential(load(score + i) - best);
        store(score + i, weight);
        sum += weight;
    }
    return total(sum);
}

// Dot products of HEADS queries and PLACES keys. Each uses the same lanes in the same order, whatever is computed with it.
template <int HEADS, int PLACES>
inline void dots(const Job& job, const float* query, const float* keys, const int32_t* place, float* score, int64_t stride) {
    const float* key[PLACES];
    Floats sum[HEADS][PLACES];
    EACH for (int p = 0; p < PLACES; ++p) {
        key[p] = keys + place[p] * job.dim;
        EACH for (int h = 0; h < HEADS; ++h) sum[h][p] = Floats{};
    }
    const int64_t whole = job.dim / LANES * LANES;
    const float scale = whole < job.dim ? 1.0f : job.scale;
    for (int64_t k = 0; k < whole; k += LANES) {
        Floats line[HEADS];
        EACH for (int h = 0; h < HEADS; ++h) line[h] = load(query + h * job.dim + k);
        EACH for (int p = 0; p < PLACES; ++p) {
            const Floats other = load(key[p] + k);
            EACH for (int h = 0; h < HEADS; ++h) sum[h][p] += line[h] * other;
        }
    }
    EACH for (int h = 0; h < HEADS; ++h) {
        float* to = score + h * stride;
        EACH for (int p = 0; p + 4 <= PLACES; p += 4) {
            const Quad four = totals(sum[h][p], sum[h][p + 1], sum[h][p + 2], sum[h][p + 3]) * scale;
            std::memcpy(to + p, &four, sizeof four);
        }
        EACH for (int p = PLACES / 4 * 4; p < PLACES; ++p) to[p] = total(sum[h][p]) * scale;
        if (whole < job.dim)
            for (int p = 0; p < PLACES; ++p) {
                float rest = 0;
                for (int64_t k = whole; k < job.dim; ++k) rest += query[h * job.dim + k] * key[p][k];
                to[p] = (to[p] + rest) * job.scale;
            }
        if (job.cap > 0)
            for (int p = 0; p < PLACES; ++p) to[p] = job.cap * std::tanh(to[p] / job.cap);
    }
}

#if defined(__AVX512F__)
#include "attention_avx512.hpp"
#else
template <int HEADS>
bool scores(const Job&, const float*, const float*, const int32_t*, int64_t, float*, int64_t) {
    return false;
}
#endif

// Adds the weighted values of HEADS heads to their sums, one place after the other.
template <int HEADS>
void blend(const Job& job, const float* weight, int64_t stride, const float* values, const int32_t* place, int64_t n, float* out) {
    int64_t k = 0;
    for (; k + WIDE * LANES <= job.dim_v; k += WIDE * LANES) {
        Floats part[HEADS][WIDE];
        EACH for (int h = 0; h < HEADS; ++h)
            EACH for (int w = 0; w < WIDE; ++w) part[h][w] = load(out + h * job.dim_v + k + w * LANES);
        for (int64_t i = 0; i < n; ++i) {
            const float* value = values + place[i] * job.dim_v + k;
            __builtin_prefetch(value + AHEAD * job.dim_v);
            Floats line[WIDE];
            EACH for (int w = 0; w < WIDE; ++w) line[w] = load(value + w * LANES);
            EACH for (int h = 0; h < HEADS; ++h) {
                const float by = weight[h * stride + i];
                EACH for (int w = 0; w < WIDE; ++w) part[h][w] += by * line[w];
            }
        }
        EACH for (int h = 0; h < HEADS; ++h)
            EACH for (int w = 0; w < WIDE; ++w) store(out + h * job.dim_v + k + w * LANES, part[h][w]);
    }
    for (; k < job.dim_v; ++k)
        for (int h = 0; h < HEADS; ++h) {
            float one = out[h * job.dim_v + k];
            for (int64_t i = 0; i < n; ++i) one += weight[h * stride + i] * values[place[i] * job.dim_v + k];
            out[h * job.dim_v + k] = one;
        }
}

inline bool sees_all(const uint8_t* seen, int64_t i) {
    uint64_t eight = 0x0101010101010101;
    if (seen) std::memcpy(&eight, seen + i, sizeof eight);
    return eight == 0x0101010101010101;
}

// Scratch memory of one thread for the tokens that it computes together.
struct Bench {
    std::vector<int32_t> place[TOKENS];
    std::vector<float> score[TOKENS];
    int64_t count[TOKENS];

    void look(const Job& job, int64_t first, int64_t tokens) {
        for (int64_t t = 0; t < tokens; ++t) {
            place[t].resize(job.used);
            score[t].resize(HEADS_AT_ONCE * (job.used + LANES));
            int32_t* found = place[t].data();
            const uint8_t* seen = job.seen ? job.seen + (first + t) * job.used : nullptr;
            int64_t n = 0, i = 0;
            for (; i + 8 <= job.used && sees_all(seen, i); i += 8, n += 8)
                EACH for (int j = 0; j < 8; ++j) found[i + j] = static_cast<int32_t>(i + j);
            for (; i < job.used; ++i) {
                found[n] = static_cast<int32_t>(i);
                n += !seen || seen[i];
            }
            count[t] = n;
        }
    }
};

// HEADS heads that share keys and values, of neighbouring tokens of one row.
template <int HEADS, int PLACES>
void heads(const Job& job, Bench& bench, int64_t first, int64_t tokens, int64_t head, int64_t base) {
    const float *keys = job.keys + base * job.dim, *values = job.values + base * job.dim_v;
    int64_t at[TOKENS] = {}, stride[TOKENS];
    for (int64_t t = 0; t < tokens; ++t) stride[t] = (bench.count[t] + LANES - 1) / LANES * LANES;
    for (int64_t end = TILE; end < job.used + TILE; end += TILE)
        for (int64_t t = 0; t < tokens; ++t) {
            const float* query = job.query + ((first + t) * job.heads + head) * job.dim;
            const int32_t* place = bench.place[t].data();
            float* score = bench.score[t].data();
            int64_t i = at[t];
            const int64_t n = std::lower_bound(place + i, place + std::min(i + TILE, bench.count[t]), end) - place;
            if (scores<HEADS>(job, query, keys, place + i, n - i, score + i, stride[t])) i = n;
            for (; i + PLACES <= n; i += PLACES) dots<HEADS, PLACES>(job, query, keys, place + i, score + i, stride[t]);
            for (; i < n; ++i) dots<HEADS, 1>(job, query, keys, place + i, score + i, stride[t]);
            at[t] = n;
        }
    float sum[TOKENS][HEADS];
    for (int64_t t = 0; t < tokens; ++t) {
        float* out = job.out + ((first + t) * job.heads + head) * job.dim_v;
        std::fill(out, out + HEADS * job.dim_v, 0.0f);
        for (int h = 0; h < HEADS; ++h) sum[t][h] = weigh(bench.score[t].data() + h * stride[t], bench.count[t], stride[t]);
        at[t] = 0;
    }
    for (int64_t end = TILE; end < job.used + TILE; end += TILE)
        for (int64_t t = 0; t < tokens; ++t) {
            const int32_t* place = bench.place[t].data();
            const int64_t i = at[t];
            const int64_t n = std::lower_bound(place + i, place + std::min(i + TILE, bench.count[t]), end) - place;
            float* out = job.out + ((first + t) * job.heads + head) * job.dim_v;
            blend<HEADS>(job, bench.score[t].data() + i, stride[t], values, place + i, n - i, out);
            at[t] = n;
        }
    for (int64_t t = 0; t < tokens; ++t)
        for (int h = 0; h < HEADS; ++h) {
            float* out = job.out + ((first + t) * job.heads + head + h) * job.dim_v;
            int64_t k = 0;
            for (; k + LANES <= job.dim_v; k += LANES) store(out + k, load(out + k) / sum[t][h]);
            for (; k < job.dim_v; ++k) out[k] /= sum[t][h];
        }
}

void group(const Job& job, Bench& bench, int64_t first, int64_t tokens, int64_t head, int64_t left, int64_t base) {
    for (; left > 0; left -= HEADS_AT_ONCE, head += HEADS_AT_ONCE) {
        if (left >= 4) heads<4, 4>(job, bench, first, tokens, head, base);
        else if (left == 3) heads<3, 4>(job, bench, first, tokens, head, base);
        else if (left == 2) heads<2, 4>(job, bench, first, tokens, head, base);
        else heads<1, 8>(job, bench, first, tokens, head, base);
    }
}

// A work item is a run of tokens of one row with one kv head. The last few items are split by their heads, into as many
// pieces as there are threads for them, so that all threads finish at about the same time. Heads of a piece share reads.
void work(void* data) {
    static thread_local Bench bench;
    Job& job = *static_cast<Job*>(data);
    const int64_t size = job.heads / job.kv_heads, items = job.runs * job.kv_heads, rest = items % job.threads;
    const int64_t whole = items - rest, pieces = rest ? std::min(size, (job.threads + rest - 1) / rest) : 1;
    for (int64_t next; (next = job.next.fetch_add(1, std::memory_order_relaxed)) < whole + rest * pieces;) {
        const int64_t item = next < whole ? next : whole + (next - whole) / pieces, kv = item % job.kv_heads;
        const int64_t first = job.start[item / job.kv_heads], tokens = job.start[item / job.kv_heads + 1] - first;
        const int64_t base = job.row[first] * job.row_step + kv * job.head_step;
        const int64_t piece = next < whole ? 0 : (next - whole) % pieces, count = next < whole ? 1 : pieces;
        const int64_t from = (piece * size + count - 1) / count, to = ((piece + 1) * size + count - 1) / count;
        bench.look(job, first, tokens);
        group(job, bench, first, tokens, kv * size + from, to - from, base);
    }
}

// Where each run of tokens that are computed together begins, and the end.
void runs(const int64_t* row, int64_t tokens, std::vector<int64_t>& start) {
    start.clear();
    for (int64_t t = 0; t < tokens; ++t)
        if (t == 0 || row[t] != row[t - 1] || t - start.back() == TOKENS) start.push_back(t);
    start.push_back(tokens);
}

}  // namespace
}  // namespace attention
