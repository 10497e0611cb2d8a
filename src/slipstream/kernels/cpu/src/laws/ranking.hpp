// The tokens that may follow a slot, ranked or sampled from its logits, for the kernels that draft.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../vectors.hpp"
#include "noise.hpp"
#include "truncate.hpp"

namespace ranking {
namespace {

using vectors::Floats;
using vectors::load;
using vectors::store;

// How candidates are made; numbered as `CandidateMode` in draft.py.
enum CandidateMode : int64_t {
    LIKELY,  // the likeliest tokens
    RACED,   // the tokens that are likeliest to win the race on the position's noise
    SURE,    // the likeliest token, without its probability
    DRAWN,   // a token sampled from the distribution
};

// The logits of a slot, and how its tokens are ranked.
struct Slot {
    const float* x;
    const int64_t* ids;  // [vocab] the token of each logit
    int64_t vocab;
    float temperature;
    int64_t key;  // of the noise, for RACED and DRAWN
    float* law;   // [vocab] receives the distribution, for DRAWN
    const truncation::Truncation* limits = nullptr;  // of the distribution, for DRAWN
};

// The `count` largest of n numbers, largest first, of equal ones the first; returns how many, fewer where some are NaN.
int64_t largest(const float* x, int64_t n, int64_t count, float* value, int64_t* index) {
    constexpr int64_t STEP = 4 * vectors::LANES;
    int64_t filled = 0;
    float least = -std::numeric_limits<float>::infinity();
    const auto scan = [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
            if (!(x[i] > least)) continue;
            int64_t at = filled < count ? filled++ : count - 1;
            for (; at > 0 && x[i] > value[at - 1]; --at) value[at] = value[at - 1], index[at] = index[at - 1];
            value[at] = x[i], index[at] = i;
            if (filled == count) least = value[count - 1];
        }
    };
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
        if (vectors::above(x + i, Floats{} + least)) scan(i, i + STEP);
    scan(i, n);
    return filled;
}

// The sum of e^((x - best) / temperature); the terms go to `each` unless it is null. Terms are summed in float32 only within
// a span, and spans in double.
double exp_sum(const float* x, int64_t n, float best, float temperature, float* each = nullptr) {
    constexpr int64_t SPAN = 64 * vectors::LANES;
    double sum_of_spans = 0;
    for (int64_t from = 0; from < n; from += SPAN) {
        const int64_t to = std::min(n, from + SPAN);
        Floats sum = {};
        int64_t i = from;
        for (; i + vectors::LANES <= to; i += vectors::LANES) {
            const Floats line = vectors::exponential((load(x + i) - best) / temperature);
            if (each) store(each + i, line);
            sum += line;
        }
        sum_of_spans += vectors::total(sum);
        for (; i < to; ++i) {
            const float term = std::exp((x[i] - best) / temperature);
            if (each) each[i] = term;
            sum_of_spans += term;
        }
    }
    return sum_of_spans;
}

// The natural logarithm of positive numbers that are not tiny, to about one unit in the last place.
inline Floats logarithm(Floats x) {
    using vectors::Words;
    const Words bits = (Words)x, shifted = bits - 0x3f3504f3;  // the rest lies between the roots of 1/2 and 2
    const Words power = shifted >> 23;
    const Floats rest = (Floats)(bits - (power << 23)) - 1.0f, square = rest * rest;
    Floats p = rest * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * rest + 1.1676998740e-1f;
    p = p * rest - 1.2420140846e-1f;
    p = p * rest + 1.4249322787e-1f;
    p = p * rest - 1.6668057665e-1f;
    p = p * rest + 2.0000714765e-1f;
    p = p * rest - 2.4999993993e-1f;
    p = p * rest + 3.3333331174e-1f;
    const Floats n = __builtin_convertvector(power, Floats);
    return n * 0.693359375f + (rest + (p * square * rest - 0.5f * square - n * 2.12194440e-4f));
}

// The weight of every token in the race: e^((x - best) / temperature) / E, where E = -log(u). For u near 1, the logarithm is
// corrected for the rounding of u to float32.
void race_weights(const float* x, const int64_t* ids, int64_t n, float best, float temperature, uint64_t key, float* y) {
    constexpr int L = vectors::LANES;
    const uint64_t mixed = noise::mix(key);
    for (int64_t i = 0; i < n; i += L) {
        const int count = static_cast<int>(std::min<int64_t>(L, n - i));
        Floats own = Floats{} - std::numeric_limits<float>::infinity(), u = Floats{} + 0.5f, rest = u;
        for (int j = 0; j < count; ++j) {
            const double exact = noise::uniform(mixed, static_cast<uint64_t>(ids[i + j]));
            u[j] = static_cast<float>(exact), rest[j] = static_cast<float>(1 - exact), own[j] = x[i + j];
        }
        const Floats one = Floats{} + 1.0f, gap = one - u;
        const vectors::Words near = gap < one * 1e-7f;
        const Floats safe = (Floats)(((vectors::Words)one & near) | ((vectors::Words)gap & ~near));
        const Floats less = Floats{} - logarithm(u) * (rest / safe);
        const Floats wait = (Floats)(((vectors::Words)rest & near) | ((vectors::Words)less & ~near));
        const Floats line = vectors::exponential((own - best) / temperature) / wait;
        std::memcpy(y + i, &line, count * sizeof(float));
    }
}

float likely(const Slot& slot, float best, int64_t count, float* prob, int64_t* index) {
    const int64_t filled = largest(slot.x, slot.vocab, count, prob, index);
    const float total = static_cast<float>(exp_sum(slot.x, slot.vocab, best, slot.temperature));
    for (int64_t k = 0; k < filled; ++k) prob[k] = std::exp((prob[k] - best) / slot.temperature) / total;
    return prob[0];
}

// By the race on the noise of the position.
float raced(const Slot& slot, float best, int64_t count, float* prob, int64_t* index) {
    static thread_local std::vector<float> weights;
    weights.resize(slot.vocab);
    race_weights(slot.x, slot.ids, slot.vocab, best, slot.temperature, static_cast<uint64_t>(slot.key), weights.data());
    const int64_t filled = largest(weights.data(), slot.vocab, count, prob, index);
    double total = 0;
    for (float weight : weights) total += weight;
    for (int64_t k = 0; k < filled; ++k) prob[k] /= static_cast<float>(total);
    return prob[0];
}

// Leave only the weights that top-k keeps; returns their sum.
double keep_top(const Slot& slot, float best) {
    const float least = truncation::least_kept(slot.x, slot.vocab, best, slot.temperature, slot.limits->top_k);
    double sum = 0;
    for (int64_t i = 0; i < slot.vocab; ++i)
        if ((slot.x[i] - best) / slot.temperature >= least) sum += slot.law[i];
        else slot.law[i] = 0;
    return sum;
}

// Sample one token from the distribution, which is written to `law`; returns its largest probability. No token where the
// distribution has NaN.
float drawn(const Slot& slot, float best, float* prob, int64_t* index) {
    double sum = exp_sum(slot.x, slot.vocab, best, slot.temperature, slot.law);
    if (slot.limits && slot.limits->by_logits(slot.vocab)) sum = keep_top(slot, best);
    const float total = static_cast<float>(sum);
    for (int64_t i = 0; i < slot.vocab; ++i) slot.law[i] /= total;
    const bool truncated = slot.limits && slot.limits->by_probability();
    if (truncated) truncation::by_probability(slot.law, slot.vocab, *slot.limits);
    const int64_t first = noise::winner(static_cast<uint64_t>(slot.key), slot.ids, slot.law, slot.vocab);
    if (first < 0) return prob[0] = 0;
    index[0] = first;
    prob[0] = slot.law[first];
    return truncated ? *std::max_element(slot.law, slot.law + slot.vocab) : 1 / total;
}

// Write the `count` best tokens and their probabilities, which must be 0 before; returns the largest probability, 0 if there
// is no token.
inline float rank(const Slot& slot, int64_t mode, int64_t count, float* prob, int64_t* index) {
    if (!largest(slot.x, slot.vocab, 1, prob, index)) return 0;
    const float best = prob[0];
    switch (static_cast<CandidateMode>(mode)) {
        case LIKELY: return likely(slot, best, count, prob, index);
        case RACED: return raced(slot, best, count, prob, index);
        case SURE: return prob[0] = 1;
        case DRAWN: return drawn(slot, best, prob, index);
    }
    return 0;
}

}  // namespace
}  // namespace ranking
