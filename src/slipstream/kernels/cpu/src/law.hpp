// The law of logits at a temperature: exponentials of scaled logits over their sum. Sums are formed part by part, each in one
// order, so that a law is the same number for number whoever computes it, in whatever number of threads.

#pragma once

#include <algorithm>

#include "noise.hpp"
#include "vectors.hpp"

namespace law {
namespace {

constexpr int64_t PART = 1 << 12, SUMS = 16;

inline int64_t parts_of(int64_t count) { return (count + PART - 1) / PART; }

// Replaces up to `PART` numbers, at most 0, by their exponentials. Returns their sum.
inline double exponentials(float* line, int64_t count) {
    using namespace vectors;
    double sums[SUMS] = {};
    float rest[SUMS];
    for (int64_t i = 0; i < count; i += SUMS) {
        const int64_t many = std::min(SUMS, count - i);
        float* own = many < SUMS ? rest : line + i;
        if (many < SUMS) std::fill_n(rest, SUMS, -1e30f), std::copy(line + i, line + count, rest);
        for (int n = 0; n < SUMS; n += LANES) store(own + n, exponential(load(own + n)));
        for (int n = 0; n < SUMS; ++n) sums[n] += own[n];
        if (many < SUMS) std::copy(rest, rest + many, line + i);
    }
    for (int half = SUMS / 2; half; half /= 2)
        for (int n = 0; n < half; ++n) sums[n] += sums[n + half];
    return sums[0];
}

// Writes the weights of one part of some logits, whose largest is `best`. Returns their sum.
inline double weigh(const float* logits, float best, float temperature, int64_t count, float* weight) {
    using namespace vectors;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(weight + i, (load(logits + i) - best) / temperature);
    for (; i < count; ++i) weight[i] = (logits[i] - best) / temperature;
    return exponentials(weight, count);
}

// The token between `begin` and `end` that wins the race of a law; `total` is the sum of all weights.
inline noise::Lead leader(uint64_t key, const int64_t* ids, const float* weight, float total, int64_t begin, int64_t end) {
    const double inverse = 1.0 / total;
    return noise::leader(
        key, ids, begin, end, [=](int64_t i) { return weight[i] * inverse; },
        [=](int64_t i) { return static_cast<double>(weight[i] / total); });
}

}  // namespace
}  // namespace law
