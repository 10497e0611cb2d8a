// The race for a token: of each row's candidates the one with the least -log(u) / p (noise.hpp).

#include "noise.hpp"

// ids [rows, count] or null for 0, 1, …; probs [rows, count] in float64 if `wide`, else float32. Rows lie `step` and `stride`
// numbers apart.
extern "C" void slipstream_race(const int64_t* key, const int64_t* ids, int64_t step, const void* probs, int64_t stride,
                                int64_t wide, int64_t rows, int64_t count, int64_t* out) {
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t* own = ids ? ids + r * step : nullptr;
        const uint64_t mine = static_cast<uint64_t>(key[r]);
        const int64_t first = wide ? noise::winner(mine, own, static_cast<const double*>(probs) + r * stride, count)
                                   : noise::winner(mine, own, static_cast<const float*>(probs) + r * stride, count);
        out[r] = own ? own[first] : first;
    }
}
