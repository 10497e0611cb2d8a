// The exponential race: the candidate of each row with the smallest -log(u) / p (noise.hpp), by a team of threads.

#include <algorithm>
#include <atomic>
#include <vector>

#include "law.hpp"
#include "truncate.hpp"

namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

constexpr int64_t PART = 1 << 12;  // candidates per unit of work

// Rows of `count` candidates, divided into parts; each thread takes the next part.
struct Race {
    const int64_t *key, *ids;  // null: 0, 1, …
    int64_t step;
    const void* probs;
    int64_t stride, wide, rows, count;
    const double* sum;  // null: of probabilities; else of `left`, which over it are probabilities once they are float32
    int64_t parts;
    noise::Lead* lead;
    std::atomic<int64_t> next{0};
};

noise::Lead part(const Race& race, int64_t r, int64_t begin, int64_t end) {
    const int64_t* own = race.ids ? race.ids + r * race.step : nullptr;
    const uint64_t key = static_cast<uint64_t>(race.key[r]);
    if (!race.wide) return noise::leader(key, own, static_cast<const float*>(race.probs) + r * race.stride, begin, end);
    const double* line = static_cast<const double*>(race.probs) + r * race.stride;
    if (!race.sum) return noise::leader(key, own, line, begin, end);
    return law::leader(key, own, line, race.sum[r], begin, end);
}

void work(void* data) {
    Race& race = *static_cast<Race*>(data);
    for (int64_t i; (i = race.next.fetch_add(1, std::memory_order_relaxed)) < race.rows * race.parts;) {
        const int64_t r = i / race.parts, n = i % race.parts;
        race.lead[i] = part(race, r, race.count * n / race.parts, race.count * (n + 1) / race.parts);
    }
}

// The smallest time over all parts of a row, the first among equal ones; -1 if no token is possible or a probability is NaN.
void run(Race& race, int64_t* out, unsigned threads, Parallel parallel) {
    static thread_local std::vector<noise::Lead> lead;
    const int64_t few = race.rows < threads ? (threads + race.rows - 1) / race.rows : 1;
    race.parts = std::max<int64_t>(1, std::min<int64_t>(few, race.count / PART));
    lead.assign(race.rows * race.parts, {});
    race.lead = lead.data();
    if (threads > 1 && race.rows * race.count > PART) parallel(work, &race, threads, 0);
    else work(&race);
    for (int64_t r = 0; r < race.rows; ++r) {
        noise::Lead best;
        for (int64_t i = r * race.parts; i < (r + 1) * race.parts; ++i)
            if (lead[i].time < best.time) best = lead[i];
        out[r] = race.ids && best.first >= 0 ? race.ids[r * race.step + best.first] : best.first;
    }
}

// Rows whose numbers are replaced by their exponentials; each thread takes the next row.
struct Exponentials {
    float *line, *total;
    int64_t stride, rows, count;
    std::atomic<int64_t> next{0};
};

void raise(void* data) {
    Exponentials& all = *static_cast<Exponentials*>(data);
    for (int64_t r; (r = all.next.fetch_add(1, std::memory_order_relaxed)) < all.rows;) {
        double sum = 0;
        for (int64_t i = 0; i < all.count; i += law::PART)
            sum += law::exponentials(all.line + r * all.stride + i, std::min(law::PART, all.count - i));
        all.total[r] = static_cast<float>(sum);
    }
}

// Rows of probabilities that are truncated; each thread takes the next row.
struct Truncations {
    float* line;
    int64_t stride, rows, count;
    const truncation::Truncation* limits;
    std::atomic<int64_t> next{0};
};

void cut(void* data) {
    Truncations& all = *static_cast<Truncations*>(data);
    for (int64_t r; (r = all.next.fetch_add(1, std::memory_order_relaxed)) < all.rows;)
        truncation::by_probability(all.line + r * all.stride, all.count, all.limits[r]);
}

}  // namespace

// ids [rows, count] or null for 0, 1, …; probs [rows, count] in float64 if `wide`, else float32. Rows lie `step` and `stride`
// numbers apart.
extern "C" void slipstream_race(const int64_t* key, const int64_t* ids, int64_t step, const void* probs, int64_t stride,
                                int64_t wide, int64_t rows, int64_t count, int64_t* out, unsigned threads, Parallel parallel) {
    Race race{key, ids, step, probs, stride, wide, rows, count, nullptr, 1, nullptr};
    run(race, out, threads, parallel);
}

// A race over residuals. target [rows, count], scale [rows]; draft [rows, many]: the probabilities of the tokens `ids`
// [rows, many], or of tokens 0, 1, … if that is null. Rows lie `stride`, `step` and `apart` numbers apart.
extern "C" void slipstream_residual(const int64_t* key, const float* target, int64_t stride, const double* scale,
                                    const int64_t* ids, int64_t step, const float* draft, int64_t apart, int64_t many,
                                    int64_t rows, int64_t count, int64_t* out, unsigned threads, Parallel parallel) {
    static thread_local std::vector<double> left, sum;
    left.resize(rows * count), sum.resize(rows);
    for (int64_t r = 0; r < rows; ++r)
        sum[r] = law::residual([own = target + r * stride](int64_t i) { return own[i]; }, scale[r],
                               ids ? ids + r * step : nullptr, draft + r * apart, many, count, left.data() + r * count);
    Race race{key, nullptr, 0, left.data(), count, 1, rows, count, sum.data(), 1, nullptr};
    run(race, out, threads, parallel);
}

// Replaces the numbers of `line` [rows, count], at most 0, by their exponentials; `total` [rows] receives their sums. Rows lie
// `stride` numbers apart.
extern "C" void slipstream_exponentials(float* line, int64_t stride, int64_t rows, int64_t count, float* total,
                                        unsigned threads, Parallel parallel) {
    Exponentials all{line, total, stride, rows, count};
    if (threads > 1 && rows > 1) parallel(raise, &all, threads, 0);
    else raise(&all);
}

// Applies top-p and min-p to probabilities, `line` [rows, count]. Rows lie `stride` numbers apart.
extern "C" void slipstream_truncate(float* line, int64_t stride, int64_t rows, int64_t count, const truncation::Truncation* limits,
                                    unsigned threads, Parallel parallel) {
    Truncations all{line, stride, rows, count, limits};
    if (threads > 1 && rows > 1) parallel(cut, &all, threads, 0);
    else cut(&all);
}
