// The race for a token: of each row's candidates the one with the least -log(u) / p, where u is a number between 0 and 1
// hashed from the row's key and the candidate's id. As in core/noise.py, number for number: the mixer is the SplitMix64
// finaliser, and u the upper 52 bits.
//
// -log(u) is no less than 1 - u, so a candidate whose 1 - u is more than the best time so far times p has lost, and hardly
// ever is there a logarithm to take.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15, FIRST = 0xBF58476D1CE4E5B9, SECOND = 0x94D049BB133111EB;

inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * FIRST;
    x = (x ^ (x >> 27)) * SECOND;
    return x ^ (x >> 31);
}

template <class Number>
int64_t winner(uint64_t key, const int64_t* ids, const Number* probs, int64_t count) {
    const uint64_t mixed = mix(key);
    double best = std::numeric_limits<double>::infinity();
    int64_t first = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double p = static_cast<double>(probs[i]);
        if (!(p > 0)) continue;
        const uint64_t id = static_cast<uint64_t>(ids ? ids[i] : i);
        const double u = (static_cast<double>(mix(mixed + (id + 1) * GOLDEN) >> 12) + 0.5) * 0x1p-52;
        if (1 - u > best * p * (1 + 1e-12)) continue;  // the margin is for rounding
        const double time = -std::log(u) / p;
        if (time < best) best = time, first = i;
    }
    return ids ? ids[first] : first;
}

}  // namespace

// ids [rows, count] or null for 0, 1, …; probs [rows, count] in float64 if `wide`, else float32. Rows lie `step` and `stride`
// numbers apart.
extern "C" void slipstream_race(const int64_t* key, const int64_t* ids, int64_t step, const void* probs, int64_t stride,
                                int64_t wide, int64_t rows, int64_t count, int64_t* out) {
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t* own = ids ? ids + r * step : nullptr;
        const uint64_t mine = static_cast<uint64_t>(key[r]);
        out[r] = wide ? winner(mine, own, static_cast<const double*>(probs) + r * stride, count)
                      : winner(mine, own, static_cast<const float*>(probs) + r * stride, count);
    }
}
