// Attention of packed tokens over a cache of rows, in float32.
//
//   query  [tokens, heads, dim]                   out [tokens, heads, dim_v]     row-major
//   keys   [rows, kv_heads, places, dim]          values [rows, kv_heads, places, dim_v]
//   seen   [tokens, used], bytes                  which places of its row a token sees; null: all of them
//
// Every token is worked on by itself: the places it sees, in their order, and nothing else. Scores, weights and sums are
// numbered by that order, never by place or by batch, so a token's bits depend on what it sees alone. The keys of one
// kv head are read once for the group of heads that share them.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int LANES = 4;
constexpr int WIDE = 4;  // vectors of a value that are summed at a time
using Floats = float __attribute__((vector_size(4 * LANES)));
using Words = int32_t __attribute__((vector_size(4 * LANES)));

struct Job {
    const float *query, *keys, *values;
    const uint8_t* seen;
    const int64_t* row;
    float* out;
    int64_t tokens, heads, kv_heads, dim, dim_v, places, used;
    float scale, cap;  // cap 0: none
    std::atomic<int64_t> next{0};
};

inline Floats load(const float* from) {
    Floats line;
    std::memcpy(&line, from, sizeof line);
    return line;
}

inline float total(Floats sum) { return (sum[0] + sum[2]) + (sum[1] + sum[3]); }

// e^x for x <= 0, to about one unit in the last place; 0 below what float32 holds.
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

// One head of one token: scores are turned into weights, their sum is returned.
float weigh(float* score, int64_t n, int64_t padded) {
    float best = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < n; ++i) best = std::max(best, score[i]);
    std::fill(score + n, score + padded, -std::numeric_limits<float>::infinity());
    Floats sum = {};
    for (int64_t i = 0; i < padded; i += LANES) {
        const Floats weight = exponential(load(score + i) - best);
        std::memcpy(score + i, &weight, sizeof weight);
        sum += weight;
    }
    return total(sum);
}

// Scores of HEADS heads that share their keys; two chains of sums a head, so that none waits for itself.
template <int HEADS>
void match(const Job& job, const float* query, const float* keys, const int32_t* place, int64_t n, float* score, int64_t padded) {
    for (int64_t i = 0; i < n; ++i) {
        const float* key = keys + place[i] * job.dim;
        Floats even[HEADS] = {}, odd[HEADS] = {};
        float rest[HEADS] = {};
        int64_t k = 0;
        for (; k + 2 * LANES <= job.dim; k += 2 * LANES)
            for (int h = 0; h < HEADS; ++h) {
                even[h] += load(query + h * job.dim + k) * load(key + k);
                odd[h] += load(query + h * job.dim + k + LANES) * load(key + k + LANES);
            }
        for (; k < job.dim; ++k)
            for (int h = 0; h < HEADS; ++h) rest[h] += query[h * job.dim + k] * key[k];
        for (int h = 0; h < HEADS; ++h) {
            const float s = job.scale * (total(even[h] + odd[h]) + rest[h]);
            score[h * padded + i] = job.cap > 0 ? job.cap * std::tanh(s / job.cap) : s;
        }
    }
}

// Values of HEADS heads, weighted and summed place by place.
template <int HEADS>
void blend(const Job& job, const float* weight, int64_t padded, const float* sum, const float* values, const int32_t* place,
           int64_t n, float* out) {
    int64_t k = 0;
    for (; k + WIDE * LANES <= job.dim_v; k += WIDE * LANES) {
        Floats part[HEADS][WIDE] = {};
        for (int64_t i = 0; i < n; ++i) {
            const float* value = values + place[i] * job.dim_v + k;
            for (int w = 0; w < WIDE; ++w)
                for (int h = 0; h < HEADS; ++h) part[h][w] += weight[h * padded + i] * load(value + w * LANES);
        }
        for (int h = 0; h < HEADS; ++h)
            for (int w = 0; w < WIDE; ++w) {
                const Floats line = part[h][w] / sum[h];
                std::memcpy(out + h * job.dim_v + k + w * LANES, &line, sizeof line);
            }
    }
    for (; k < job.dim_v; ++k)
        for (int h = 0; h < HEADS; ++h) {
            float one = 0;
            for (int64_t i = 0; i < n; ++i) one += weight[h * padded + i] * values[place[i] * job.dim_v + k];
            out[h * job.dim_v + k] = one / sum[h];
        }
}

template <int HEADS>
void heads(const Job& job, int64_t head, int64_t base, const int32_t* place, int64_t n, float* score) {
    const int64_t padded = (n + LANES - 1) / LANES * LANES;
    float sum[HEADS];
    match<HEADS>(job, job.query + head * job.dim, job.keys + base * job.dim, place, n, score, padded);
    for (int h = 0; h < HEADS; ++h) sum[h] = weigh(score + h * padded, n, padded);
    blend<HEADS>(job, score, padded, sum, job.values + base * job.dim_v, place, n, job.out + head * job.dim_v);
}

void work(void* data) {
    static thread_local std::vector<int32_t> place;
    static thread_local std::vector<float> score;
    Job& job = *static_cast<Job*>(data);
    const int64_t group = job.heads / job.kv_heads;
    place.resize(job.used);
    score.resize(4 * (job.used + LANES));
    for (int64_t item; (item = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tokens * job.kv_heads;) {
        const int64_t token = item / job.kv_heads, kv = item % job.kv_heads;
        int64_t n = 0;
        for (int64_t i = 0; i < job.used; ++i)
            if (!job.seen || job.seen[token * job.used + i]) place[n++] = static_cast<int32_t>(i);
        const int64_t base = (job.row[token] * job.kv_heads + kv) * job.places;
        int64_t head = token * job.heads + kv * group;
        for (int64_t left = group; left > 0; left -= 4, head += 4) {
            if (left >= 4) heads<4>(job, head, base, place.data(), n, score.data());
            else if (left == 3) heads<3>(job, head, base, place.data(), n, score.data());
            else if (left == 2) heads<2>(job, head, base, place.data(), n, score.data());
            else heads<1>(job, head, base, place.data(), n, score.data());
        }
    }
}

}  // namespace

// `sizes`: tokens, heads, kv_heads, dim, dim_v, places, used. `parallel` runs a function on a team of threads.
extern "C" void slipstream_attend(const float* query, const float* keys, const float* values, const uint8_t* seen,
                                  const int64_t* row, float* out, const int64_t* sizes, float scale, float cap,
                                  unsigned threads, void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    Job job{query, keys, values, seen, row, out, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], scale, cap};
    if (threads > 1) parallel(work, &job, threads, 0);
    else work(&job);
}
