// How much of a drafted chain is accepted by the rules that compare laws. The references are core/verify/token.py and block.py.
// `draw(i)` is the random number that decides about token i, `target` and `draft` the probabilities of the drafted tokens.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace verify {
namespace {

constexpr double SLACK = 1 + 1e-6;  // factor on the bound of an acceptance, because laws sum to one only up to rounding

// How many tokens are accepted, and the weight of the target's law in the residual of the next one.
struct Accepted {
    int64_t count;
    double scale;
};

// Token by token (arXiv 2302.01318).
template <class Draw>
Accepted by_token(const float* target, const float* draft, int64_t length, Draw draw) {
    const auto chance = [&](int64_t i) { return draft[i] > 0 ? std::min(target[i] / draft[i], 1.0f) : 0.0f; };
    int64_t count = 0;
    while (count < length && draw(count) < static_cast<double>(chance(count))) ++count;
    return {count, 1.0};
}

// As a whole (arXiv 2403.10444): the longest prefix that is kept. excess(i, w) sums max(w p - q, 0) over the vocabulary for the
// laws p and q of token i.
template <class Draw, class Excess>
Accepted by_block(const float* target, const float* draft, int64_t length, Draw draw, Excess excess) {
    std::vector<double> weight(length + 1, 1.0);  // of a prefix, by its length
    for (int64_t i = 0; i < length; ++i) {
        const double ratio = draft[i] > 0 ? static_cast<double>(target[i]) / static_cast<double>(draft[i]) : 0.0;
        weight[i + 1] = std::min(1.0, weight[i] * ratio);
    }
    const auto chance = [&](int64_t count) {
        const double own = weight[count];
        if (count == length) return own;
        const double sum = excess(count, own), total = sum + 1 - own;
        return total > 0 ? sum / std::max(total, 1e-300) : 0.0;
    };
    int64_t count = length;
    for (; count > 0; --count) {
        const double drawn = draw(count - 1);
        if (drawn < weight[count] * SLACK && drawn < chance(count)) break;
    }
    return {count, weight[count]};
}

}  // namespace
}  // namespace verify
