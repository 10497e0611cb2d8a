#include "attention.hpp"

// `sizes`: tokens, heads, kv_heads, dim, dim_v, row_step, head_step, used. `parallel` runs a function on a team of threads.
extern "C" void slipstream_attend(const float* query, const float* keys, const float* values, const uint8_t* seen,
                                  const int64_t* row, float* out, const int64_t* sizes, float scale, float cap,
                                  unsigned threads, void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    static thread_local std::vector<int64_t> start;
    attention::runs(row, sizes[0], start);
    attention::Job job{query, keys, values, seen, row, out, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
                       sizes[6], sizes[7], scale, cap, threads, start.data(), static_cast<int64_t>(start.size()) - 1};
    if (threads > 1) parallel(attention::work, &job, threads, 0);
    else attention::work(&job);
}
