// Division of a product among threads, included by linear.hpp.
//
// Few rows are bound by reading weights, so each thread reads one contiguous range of them, chunk by chunk. It prefetches
// past the end of its range into the range that it reads next: that of the next product. A thread that is done takes
// chunks that others have not begun. Many rows are divided into tiles, and each piece goes to the thread that asks next.

constexpr int64_t CLAIMS = 64;  // chunks whose owners fit in one word

// A product to be computed by several threads.
struct Job : Product {
    int64_t threads, own_x;       // own_x: how far the copies of x lie apart if each thread has its own; 0: they share it
    const Job* then;              // the product that the same threads do next, or null
    std::atomic<int64_t> next{0};
    std::atomic<uint64_t> claimed{0};
};

using Compute = void (*)(const Job*, int64_t, int64_t, const char*);  // `slipstream_compute`

// The first group of a chunk. Chunks have whole units, the last one perhaps less.
INLINE int64_t chunk_start(const Product& job, int64_t chunk) {
    const int64_t units = (job.groups + job.unit - 1) / job.unit;
    return std::min(job.groups, chunk * units / job.chunks * job.unit);
}

INLINE int64_t group_outputs(const Product& job) { return job.kind >= FOUR ? SIDE : GROUP; }

INLINE int64_t group_bytes(const Product& job) {
    switch (job.kind) {
        case SINGLE: return job.in * sizeof(Single);
        case BRAIN: return job.in * sizeof(Brain);
        case FOUR: return blocks_of<Four>(job) * sizeof(Four);
        case EIGHT: return blocks_of<Eight>(job) * sizeof(Eight);
        case FOUR_K: return blocks_of<FourK>(job) * sizeof(FourK);
        case FIVE_K: return blocks_of<FiveK>(job) * sizeof(FiveK);
        case SIX_K: return blocks_of<SixK>(job) * sizeof(SixK);
    }
    return 0;
}

// Where the weights of a chunk begin.
INLINE const char* weights_at(const Product& job, int64_t chunk) {
    return static_cast<const char*>(job.weight) + chunk_start(job, chunk) * group_bytes(job);
}

// The first of the chunks that a thread takes before others'.
INLINE int64_t own_chunk(const Job& job, int64_t thread) { return thread * job.chunks / job.threads; }

// Where a thread's weights begin; null without a product.
INLINE const char* own_weights(const Job* job, int64_t thread) { return job ? weights_at(*job, own_chunk(*job, thread)) : nullptr; }

INLINE bool has_claims(const Job& job) { return job.tiles == 1 && job.chunks <= CLAIMS; }

// Calls f(chunk, does the next chunk follow in memory) for the thread's own chunks, then for those that others have left.
template <class F>
INLINE void share_chunks(Job& job, int64_t thread, F f) {
    const int64_t start = own_chunk(job, thread), end = own_chunk(job, thread + 1), all = job.chunks;
    for (int64_t k = 0; k < all; ++k) {
        const int64_t i = (start + k) % all;
        const uint64_t bit = uint64_t{1} << i;
        if (!(job.claimed.fetch_or(bit, std::memory_order_relaxed) & bit)) f(i, i + 1 != end && i + 1 < all);
    }
}

// Computes pieces of the product (rows of a tile by groups of a chunk) until none is left.
INLINE void run_product(Job& job, int64_t thread, Compute compute) {
    if (!has_claims(job)) {
        for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tiles * job.chunks;)
            compute(&job, i, thread, nullptr);
        return;
    }
    const char* then = own_weights(job.then, thread);
    share_chunks(job, thread, [&](int64_t i, bool more) { compute(&job, i, thread, more ? weights_at(job, i + 1) : then); });
}

// A product divided for `threads` threads. `x`: memory for its arranged rows.
void prepare(Job& job, const Matrix& matrix, const float* given, float* x, float* y, int64_t rows, unsigned threads,
             bool onto = false) {
    const bool whole = matrix.kind >= FOUR;
    const int64_t in = matrix.in, size = whole ? SIDE : GROUP, groups = (matrix.out + size - 1) / size;
    const int64_t tile = std::max<int64_t>(HELD, TILE / in / HELD * HELD), parts = std::clamp<int64_t>(CLAIMS / threads, 1, 3);
    const int64_t spans = whole ? std::max(1, SPAN / SIDE) : 4;  // groups of a unit if there are enough
    const int64_t unit = groups < 2 * spans * threads ? 1 : spans, units = (groups + unit - 1) / unit;
    job.given = given, job.x = x, job.weight = matrix.weight, job.bias = matrix.bias, job.y = y;
    job.rows = rows, job.in = in, job.out = matrix.out, job.groups = groups;
    job.tile = tile, job.tiles = (rows + tile - 1) / tile, job.unit = unit;
    job.chunks = std::min<int64_t>(units, parts * threads);
    job.kind = static_cast<Kind>(matrix.kind), job.onto = onto;
    job.end = nullptr, job.jump = 0, job.threads = threads, job.own_x = 0, job.then = nullptr;
    job.next = 0, job.claimed = 0;
}
