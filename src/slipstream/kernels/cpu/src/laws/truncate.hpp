// Top-k, top-p and min-p: the tokens of a law that are kept. The reference is core/sampling.py, whose thresholds are the same
// numbers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "../vectors.hpp"

namespace truncation {
namespace {

constexpr int64_t FEW = 64;  // of the largest numbers, which are kept in order while all are looked at

// Laid out as `TruncationStruct` in truncate.py.
struct Truncation {
    int64_t top_k = 0;  // 0: no limit
    double top_p = 1, min_p = 0;

    bool by_logits(int64_t count) const { return 0 < top_k && top_k < count; }
    bool by_probability() const { return top_p < 1 || min_p > 0; }
};

// Adds the numbers above a bound, in their order.
inline void above(const float* x, int64_t count, float bound, std::vector<float>& found) {
    constexpr int64_t STEP = 4 * vectors::LANES;
    const auto add = [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i)
            if (x[i] > bound) found.push_back(x[i]);
    };
    int64_t i = 0;
    for (; i + STEP <= count; i += STEP)
        if (vectors::above(x + i, vectors::Floats{} + bound)) add(i, i + STEP);
    add(i, count);
}

// The k-th largest of at least k numbers.
inline float largest(const float* x, int64_t count, int64_t k) {
    static thread_local std::vector<float> kept;
    if (k > FEW) {
        kept.assign(x, x + count);
        std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<float>());
        return kept[k - 1];
    }
    constexpr int64_t STEP = 4 * vectors::LANES;
    kept.assign(k, -std::numeric_limits<float>::infinity());  // largest first
    const auto take = [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
            if (!(x[i] > kept.back())) continue;
            int64_t at = k - 1;
            for (; at > 0 && x[i] > kept[at - 1]; --at) kept[at] = kept[at - 1];
            kept[at] = x[i];
        }
    };
    int64_t i = 0;
    for (; i + STEP <= count; i += STEP)
        if (vectors::above(x + i, vectors::Floats{} + kept.back())) take(i, i + STEP);
    take(i, count);
    return kept.back();
}

// The least (logit - best) / temperature that top-k keeps.
inline float least_kept(const float* logits, int64_t count, float best, float temperature, int64_t top_k) {
    return (largest(logits, count, top_k) - best) / temperature;
}

// The least probability that top-p keeps; 0 where it keeps all.
inline float nucleus(const float* probs, int64_t count, float mass) {
    if (mass >= 1) return 0;
    static thread_local std::vector<float> ranked;
    for (float bound = 0x1p-10f;; bound = bound > 0x1p-100f ? bound * 0x1p-6f : 0) {
        ranked.clear();
        above(probs, count, bound, ranked);
        if (bound > 0 && std::accumulate(ranked.begin(), ranked.end(), 0.0) < 0.999 * mass) continue;  // not enough
        std::sort(ranked.begin(), ranked.end(), std::greater<float>());
        double sum = 0;
        for (float prob : ranked)
            if ((sum += prob) >= static_cast<double>(mass)) return prob;
        if (bound == 0) return 0;
    }
}

// Keeps probabilities of at least `least`, normalised. Where all are kept none is changed.
inline void keep_only(float* probs, int64_t count, float least) {
    double sum = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i)
        if (probs[i] >= least) sum += probs[i], ++kept;
    if (kept == count) return;
    const float total = static_cast<float>(sum);
    for (int64_t i = 0; i < count; ++i) probs[i] = probs[i] >= least ? probs[i] / total : 0;
}

// Applies top-p, then min-p.
inline void by_probability(float* probs, int64_t count, const Truncation& limits) {
    if (limits.top_p < 1) keep_only(probs, count, nucleus(probs, count, static_cast<float>(limits.top_p)));
    if (limits.min_p > 0)
        keep_only(probs, count, static_cast<float>(limits.min_p) * *std::max_element(probs, probs + count));
}

}  // namespace
}  // namespace truncation
