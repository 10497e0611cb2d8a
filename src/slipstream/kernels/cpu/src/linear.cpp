#include "linear.hpp"

namespace linear {
namespace {

// Compute pieces of the result (rows of a tile by groups of a chunk) until none is left.
void work(Job& job) {
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tiles * job.chunks;) {
        const int64_t top = i / job.chunks * job.tile, bottom = std::min(job.rows, top + job.tile);
        const int64_t first = i % job.chunks * job.chunk, last = std::min(job.groups, first + job.chunk);
        switch (job.kind) {
            case SINGLE: floats<Single>(job, top, bottom, first, last); break;
            case BRAIN: floats<Brain>(job, top, bottom, first, last); break;
            case FOUR: integers<Four>(job, top, bottom, first, last); break;
            case EIGHT: integers<Eight>(job, top, bottom, first, last); break;
            case FOUR_K: integers<FourK>(job, top, bottom, first, last); break;
            case FIVE_K: integers<FiveK>(job, top, bottom, first, last); break;
            case SIX_K: integers<SixK>(job, top, bottom, first, last); break;
        }
    }
}

}  // namespace
}  // namespace linear

extern "C" int slipstream_lanes() { return linear::LANES; }

// The number of interleaved outputs of integer weights; 0 if they are not supported.
extern "C" int slipstream_side() {
#ifdef INTEGERS
    return linear::SIDE;
#else
    return 0;
#endif
}

// The same for other libraries (`decoder.cpp`), so that these kernels are compiled only once.
extern "C" void slipstream_work(linear::Job* job) { linear::work(*job); }

// `parallel` runs a function on a team of threads, as GOMP_parallel does.
extern "C" void slipstream_linear(const linear::Matrix* matrix, const float* x, float* y, int64_t rows, unsigned threads,
                                  void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    static thread_local linear::Scratch scratch;
    const bool plain = rows == 1 && matrix->kind < linear::FOUR;  // needs no rearranging
    float* arranged = plain ? const_cast<float*>(x) : scratch.of(linear::room(rows, matrix->in));
    linear::Job job;
    linear::prepare(job, *matrix, x, arranged, y, rows, threads);
    const auto run = [&](void (*function)(void*), bool alone) {
        job.next = 0;
        if (alone) function(&job);
        else parallel(function, &job, threads, 0);
    };
    const auto arrange = [](void* data) {
        linear::Job& job = *static_cast<linear::Job*>(data);
        for (int64_t row; (row = linear::MOST * job.next.fetch_add(1, std::memory_order_relaxed)) < job.rows;)
            linear::arrange(job.kind, job.given, job.x, job.rows, job.in, row);
    };
    if (!plain) run(arrange, threads == 1 || rows <= 2 * linear::MOST);
    run([](void* data) { linear::work(*static_cast<linear::Job*>(data)); }, threads == 1);
}
