// The law of logits at a temperature: exponentials of scaled logits over their sum. Sums are formed part by part, each in one
// order, so that a law is the same number for number whoever computes it, in whatever number of threads.

#pragma once

#include <algorithm>
#include <limits>

#include "../vectors.hpp"
#include "noise.hpp"

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

// Writes the weights of one part of some logits, whose largest is `best`. Returns their sum. Those whose (logit - best) /
// temperature is below `least` become 0.
inline double weigh(const float* logits, float best, float temperature, float least, int64_t count, float* weight) {
    using namespace vectors;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(weight + i, (load(logits + i) - best) / temperature);
    for (; i < count; ++i) weight[i] = (logits[i] - best) / temperature;
    constexpr float NEVER = -std::numeric_limits<float>::infinity();
    if (least > NEVER)
        for (i = 0; i < count; ++i) weight[i] = weight[i] < least ? NEVER : weight[i];
    return exponentials(weight, count);
}

// The token between `begin` and `end` that wins the race of a law; `total` is the sum of all weights.
template <class Number>
noise::Lead leader(uint64_t key, const int64_t* ids, const Number* weight, Number total, int64_t begin, int64_t end) {
    const double inverse = 1.0 / total;
    return noise::leader(
        key, ids, begin, end, [=](int64_t i) { return weight[i] * inverse; },
        [=](int64_t i) { return static_cast<double>(static_cast<float>(weight[i] / total)); });
}

// max(scale * p - q, 0) for every token, where p(i) is the target's probability and `draft` that of `many` tokens: those of
// `ids`, or 0, 1, … if that is null. Returns the sum. The two loops must not be fused: core/verify/token.py rounds the product
// before it subtracts.
template <class Target>
double excess(Target p, double scale, const int64_t* ids, const float* draft, int64_t many, int64_t count, double* left) {
    for (int64_t i = 0; i < count; ++i) left[i] = static_cast<double>(p(i)) * scale;
    for (int64_t i = 0; i < many; ++i) left[ids ? ids[i] : i] -= static_cast<double>(draft[i]);
    double sums[4] = {};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int64_t j = 0; j < 4; ++j) sums[j] += left[i + j] = std::max(left[i + j], 0.0);
    for (; i < count; ++i) sums[0] += left[i] = std::max(left[i], 0.0);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The same, or scale * p if that is 0 everywhere: the residual, not normalised.
template <class Target>
double residual(Target p, double scale, const int64_t* ids, const float* draft, int64_t many, int64_t count, double* left) {
    double sum = excess(p, scale, ids, draft, many, count, left);
    if (sum > 0) return sum;
    for (int64_t i = 0; i < count; ++i) sum += left[i] = static_cast<double>(p(i)) * scale;
    return sum;
}

}  // namespace
}  // namespace law
