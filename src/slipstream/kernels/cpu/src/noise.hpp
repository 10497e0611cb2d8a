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

// Who is first in a race, or in a part of it: where it stands, -1 for nobody, and its time.
struct Lead {
    double time = std::numeric_limits<double>::infinity();
    int64_t first = -1;
};

// What a probability that is NaN makes of its race: nobody wins, whatever the other parts say.
constexpr Lead BROKEN = {-std::numeric_limits<double>::infinity(), -1};

// Of tokens `begin` to `end` (`ids`, null: 0, 1, …) the one with the least -log(u) / p. `near` gives about its probability,
// no less than by a millionth of it too little, and `exact` the very number.
// -log(u) is no less than 1 - u, so a token whose 1 - u is more than the best time so far times p has lost, and hardly ever
// is there a logarithm to take.
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
