#include "linear.hpp"

extern "C" int slipstream_lanes() { return linear::LANES; }

// How many outputs of weights of four and eight bits lie side by side; 0 where there are no such weights.
extern "C" int slipstream_side() {
#ifdef INTEGERS
    return linear::SIDE;
#else
    return 0;
#endif
}

// `parallel` runs a function on a team of threads, as GOMP_parallel does.
extern "C" void slipstream_linear(const linear::Matrix* matrix, const float* x, float* y, int64_t rows, unsigned threads,
                                  void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    static thread_local linear::Scratch scratch;
    const bool plain = rows == 1 && matrix->kind < linear::FOUR;  // then it lies right as it is
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
