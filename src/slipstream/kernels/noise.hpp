// Random numbers as a function of a key: what they must equal is core/noise.py, number for number. The mixer is the
// SplitMix64 finaliser, a number between 0 and 1 the upper 52 bits.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace noise {
namespace {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15, FIRST = 0xBF58476D1CE4E5B9, SECOND = 0x94D049BB133111EB;

inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * FIRST;
    x = (x ^ (x >> 27)) * SECOND;
    return x ^ (x >> 31);
}

// The number of a token under a key that was mixed once.
inline double uniform(uint64_t mixed, uint64_t token) {
    return (static_cast<double>(mix(mixed + (token + 1) * GOLDEN) >> 12) + 0.5) * 0x1p-52;
}

// Of some tokens (`ids`, null: 0, 1, …) and their probabilities the one with the least -log(u) / p: where it stands.
// -log(u) is no less than 1 - u, so a token whose 1 - u is more than the best time so far times p has lost, and hardly ever
// is there a logarithm to take.
template <class Number>
int64_t winner(uint64_t key, const int64_t* ids, const Number* probs, int64_t count) {
    const uint64_t mixed = mix(key);
    double best = std::numeric_limits<double>::infinity();
    int64_t first = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double p = static_cast<double>(probs[i]);
        if (!(p > 0)) continue;
        const double u = uniform(mixed, static_cast<uint64_t>(ids ? ids[i] : i));
        if (1 - u > best * p * (1 + 1e-12)) continue;  // the margin is for rounding
        const double time = -std::log(u) / p;
        if (time < best) best = time, first = i;
    }
    return first;
}

}  // namespace
}  // namespace noise
