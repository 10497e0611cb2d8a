// Counter-based random numbers. The reference is core/noise.py; all numbers are equal to its numbers. The mixer is the
// SplitMix64 finaliser. A number between 0 and 1 is made of the upper 52 bits.

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

// A key with one more field (`fold`).
inline uint64_t fold(uint64_t key, uint64_t field) { return mix(mix(key) + (field + 1) * GOLDEN); }

// What a draw decides; numbered as `Purpose`.
enum Purpose : uint64_t { DRAFT = 1, ACCEPT, EMIT, FIELD };

// The key of a draw in a cycle that starts at a length of the text, from the key of the row.
inline uint64_t key_of(uint64_t row, uint64_t start, uint64_t node, Purpose purpose) {
    return fold(fold(fold(row, start), node), purpose);
}

// The random number of a key.
inline double uniform(uint64_t key) { return (static_cast<double>(key >> 12) + 0.5) * 0x1p-52; }

// The random number of a token for a key that was mixed once.
inline double uniform(uint64_t mixed, uint64_t token) {
    return uniform(mix(mixed + (token + 1) * GOLDEN));
}

// The winner of a race or of a part of it: its index (-1: none) and its time.
struct Lead {
    double time = std::numeric_limits<double>::infinity();
    int64_t first = -1;
};

// The result of a race with a NaN probability: no winner, whatever the other parts give.
constexpr Lead BROKEN = {-std::numeric_limits<double>::infinity(), -1};

// The token among `begin` to `end` (`ids`, null: 0, 1, …) with the smallest -log(u) / p. `exact` gives the probability p of a
// token; `near` gives an approximation that is at most a millionth too small. -log(u) >= 1 - u, so a token with
// 1 - u > best time * p cannot win. So a logarithm is rarely computed.
template <class Near, class Exact>
Lead leader(uint64_t key, const int64_t* ids, int64_t begin, int64_t end, Near near, Exact exact) {
    const uint64_t mixed = mix(key);
    Lead lead;
    for (int64_t i = begin; i < end; ++i) {
        const double about = near(i);
        if (!(about > 0)) {
            if (about != about) return BROKEN;
            continue;
        }
        const double u = uniform(mixed, static_cast<uint64_t>(ids ? ids[i] : i));
        if (1 - u > lead.time * about * (1 + 1e-6)) continue;
        const double p = exact(i);
        const double time = p > 0 ? -std::log(u) / p : std::numeric_limits<double>::infinity();
        if (time < lead.time) lead = {time, i};
    }
    return lead;
}

template <class Number>
Lead leader(uint64_t key, const int64_t* ids, const Number* probs, int64_t begin, int64_t end) {
    const auto prob = [probs](int64_t i) { return static_cast<double>(probs[i]); };
    return leader(key, ids, begin, end, prob, prob);
}

template <class Number>
int64_t winner(uint64_t key, const int64_t* ids, const Number* probs, int64_t count) {
    return leader(key, ids, probs, 0, count).first;
}

}  // namespace
}  // namespace noise
