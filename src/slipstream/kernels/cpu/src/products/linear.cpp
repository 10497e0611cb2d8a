#include "linear.hpp"

namespace linear {
namespace {

// Computes a piece of a product: rows of a tile by groups of a chunk.
void compute(const Product& job, int64_t piece) {
    const int64_t top = piece / job.chunks * job.tile, bottom = std::min(job.rows, top + job.tile), chunk = piece % job.chunks;
    const int64_t first = chunk_start(job, chunk), last = chunk_start(job, chunk + 1);
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

// A float16 as float32, exactly.
float widened(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 0) {  // zero, or a multiple of 2^-24
        const float value = fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
float widened(float value) { return value; }
float widened(int8_t value) { return value; }

// The number of an input of an output in a span; 6-bit weights are four times as large.
template <class Weight>
int number_of(const SpanWeights<Weight>& span, int64_t lane, int input) {
    constexpr int HALF = SPAN / 2;
    const auto byte_of = [&](int line) { return span.number[4 * (SIDE * line + lane) + input % 4]; };
    if (Weight::BITS == 8) return byte_of(input / 4);
    if (Weight::BITS == 4) return byte_of(input % HALF / 4) >> (input < HALF ? 0 : 4) & 15;
    const int line = input / HALF * 3, j = input % HALF / 4;
    if (j < 3) return static_cast<int8_t>(byte_of(line + j) & 0xfc);
    return static_cast<int8_t>((byte_of(line) & 3) << 6 | (byte_of(line + 1) & 3) << 4 | (byte_of(line + 2) & 3) << 2);
}

// The scale of a part of a span, or behind the parts the floor.
template <class Weight>
float scale_of(const SpanWeights<Weight>& span, int64_t lane, int part) {
    const float own = widened(span.block.scale[span.at][part][lane]);
    const float product = Weight::FACTORS ? own * widened(span.block.factor[part / Weight::PARTS][lane]) : own;
    return Weight::BITS == 6 ? product / 4 : product;
}

// One output's weights, in float32. A number times its scale is exact, so that a fused addition gives the same sum.
template <class Weight>
void unpack(const Matrix& matrix, int64_t output, float* y) {
    const int64_t spans = matrix.in / SPAN, lane = output % SIDE;
    const Weight* first = static_cast<const Weight*>(matrix.weight) + output / SIDE * (spans / Weight::SPANS);
    for (int64_t s = 0; s < spans; ++s) {
        const SpanWeights<Weight> span(first, s);
        for (int i = 0; i < SPAN; ++i) {
            const float product = number_of(span, lane, i) * scale_of(span, lane, i * Weight::PARTS / SPAN);
            *y++ = Weight::FLOOR ? product + scale_of(span, lane, Weight::PARTS) : product;
        }
    }
}

}  // namespace
}  // namespace linear

// The weights of some outputs of a matrix of integers, one after the other. Returns 0 at an output that does not exist.
extern "C" int slipstream_unpack(const linear::Matrix* matrix, const int64_t* outputs, int64_t count, float* y) {
    using namespace linear;
    for (int64_t i = 0; i < count; ++i, y += matrix->in) {
        if (outputs[i] < 0 || outputs[i] >= matrix->out) return 0;
        switch (static_cast<Kind>(matrix->kind)) {
            case FOUR: unpack<Four>(*matrix, outputs[i], y); break;
            case EIGHT: unpack<Eight>(*matrix, outputs[i], y); break;
            case FOUR_K: unpack<FourK>(*matrix, outputs[i], y); break;
            case FIVE_K: unpack<FiveK>(*matrix, outputs[i], y); break;
            case SIX_K: unpack<SixK>(*matrix, outputs[i], y); break;
            default: return 0;  // floats are not stored in blocks
        }
    }
    return 1;
}

extern "C" int slipstream_lanes() { return linear::LANES; }

// The number of interleaved outputs of integer weights; 0 if they are not supported.
extern "C" int slipstream_side() {
#ifdef INTEGERS
    return linear::SIDE;
#else
    return 0;
#endif
}

// Computes a piece of a product for a thread. `next`: the weights that the thread reads after these, or null. Other libraries
// (`decoder.cpp`) call it too, so that these kernels are compiled only once.
extern "C" void slipstream_compute(const linear::Job* job, int64_t piece, int64_t thread, const char* next) {
    linear::Product own = *job;
    own.x += thread * job->own_x;
    if (next) own.end = linear::weights_at(own, piece + 1), own.jump = next - own.end;
    linear::compute(own, piece);
}

// `parallel` runs a function on a team of threads, as GOMP_parallel does.
extern "C" void slipstream_linear(const linear::Matrix* matrix, const float* x, float* y, int64_t rows, unsigned threads,
                                  void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) {
    static thread_local linear::Scratch scratch;
    const bool plain = rows == 1 && matrix->kind < linear::FOUR;  // needs no rearranging
    float* arranged = plain ? const_cast<float*>(x) : scratch.of(linear::room(rows, matrix->in));
    struct : linear::Job {
        std::atomic<int64_t> joined{0};
    } job;
    using Team = decltype(job);
    linear::prepare(job, *matrix, x, arranged, y, rows, threads);
    const auto run = [&](void (*function)(void*), bool alone) {
        job.next = 0, job.claimed = 0;
        if (alone) function(&job);
        else parallel(function, &job, threads, 0);
    };
    const auto arrange = [](void* data) {
        Team& job = *static_cast<Team*>(data);
        for (int64_t row; (row = linear::MOST * job.next.fetch_add(1, std::memory_order_relaxed)) < job.rows;)
            linear::arrange(job.kind, job.given, job.x, job.rows, job.in, row);
    };
    if (!plain) run(arrange, threads == 1 || rows <= 2 * linear::MOST);
    const auto multiply = [](void* data) {
        Team& job = *static_cast<Team*>(data);
        linear::run_product(job, job.joined.fetch_add(1, std::memory_order_relaxed) % job.threads, slipstream_compute);
    };
    run(multiply, threads == 1);
}
