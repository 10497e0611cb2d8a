// Integer products on ARM, included by integers.hpp: four outputs interleaved, bytes multiplied four at a time.

// The activations of one row in one span: 8-bit integers, or 16-bit integers as 256 high + low.
struct Row {
    int8_t number[BYTES ? 1 : 2][SPAN];
    float back[BYTES ? 4 : 0];  // the contribution of RAISED, which is subtracted
    float step, sum;
};
constexpr int64_t ROW_FLOATS = sizeof(Row) / sizeof(float);  // of a row in one span

constexpr float RAISED = 3 << 22;  // 1.5 * 2^23: adding an integer up to 2^22 to its bits adds the integer to its value
alignas(16) const float raised[4] = {RAISED, RAISED, RAISED, RAISED};
constexpr float LESS = -257 * RAISED;  // takes RAISED off 256 high sums and off the low sum that is added to them
alignas(16) const float less[4] = {LESS, LESS, LESS, LESS};

// Where the rows of a block begin: interleaved, span by span.
INLINE Row* rows_of(float* x, int64_t in, int64_t row) {
    return reinterpret_cast<Row*>(x) + row / MOST * MOST * (in / SPAN);
}

// Round row r of x to integers, from input `first` to `last`.
INLINE void wholes(const float* given, float* x, int64_t rows, int64_t in, int64_t r, int64_t first, int64_t last) {
    const int64_t beside = std::min<int64_t>(MOST, rows - r / MOST * MOST);
    Row* to = rows_of(x, in, r) + r % MOST;
    for (int64_t k = first; k < last; k += SPAN) {
        float32x4_t most = vabsq_f32(vld1q_f32(given + k));
        for (int i = 4; i < SPAN; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(given + k + i)));
        const float top = vmaxvq_f32(most), by = top > 0 ? FULL / top : 0;
        Row& own = to[k / SPAN * beside];
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < SPAN; i += 8) {
            const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(given + k + i), by));
            const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(given + k + i + 4), by));
            sum = vaddq_s32(sum, vaddq_s32(a, b));
            const int16x8_t both = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
            const int8x8_t high = vmovn_s16(BYTES ? both : vrshrq_n_s16(both, 8));
            vst1_s8(own.number[0] + i, high);
            if constexpr (!BYTES) vst1_s8(own.number[1] + i, vmovn_s16(vsubq_s16(both, vshll_n_s8(high, 8))));
        }
        own.step = step_of(top);
        if constexpr (BYTES) vst1q_f32(own.back, vdupq_n_f32(-RAISED * own.step));
        own.sum = own.step * static_cast<float>(vaddvq_s32(sum));
    }
}

// Bytes of four outputs, four inputs a vector, eight vectors a span.
template <class Weight>
INLINE void unpack(const SpanWeights<Weight>& span, int8x16_t (&weight)[8]) {
    if constexpr (Weight::BITS == 8) {
        each<8>([&](auto j) { weight[j] = vld1q_s8(span.number + 16 * j); });
    } else if constexpr (Weight::BITS == 6) {
        each<2>([&](auto half) INLINED {
            uint8x16_t line[3];
            each<3>([&](auto j) INLINED { line[j] = vld1q_u8(span.number + 16 * (3 * half + j)); });
            each<3>([&](auto j) INLINED { weight[4 * half + j] = vreinterpretq_s8_u8(vandq_u8(line[j], vdupq_n_u8(0xfc))); });
            const uint8x16_t back = vsliq_n_u8(vshlq_n_u8(line[2], 2), line[1], 4);
            weight[4 * half + 3] = vreinterpretq_s8_u8(vsliq_n_u8(back, line[0], 6));
        });
    } else {
        each<4>([&](auto j) {
            const uint8x16_t both = vld1q_u8(span.number + 16 * j);
            weight[j] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            weight[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        });
    }
}

// The start value of sums. Compilers would keep it in a register and copy it for every sum, which takes the issue slot of a
// product. A load takes none. NUMBER makes each one distinct, so that the compiler does not merge them.
template <int NUMBER>
INLINE float32x4_t beginning(const float (&value)[4], const Row* rows) {
    float32x4_t sum;
    asm("ldr %q0, %1" : "=w"(sum) : "m"(value), "r"(rows), "i"(NUMBER));
    return sum;
}

// The products of row R and COUNT halves of a span, from half FIRST on, times the step of the row. The sums of high and low
// bytes take turns, because each waits for its last product. They start at RAISED, so that their bits are a float32 that is
// too large by that. One instruction subtracts it and multiplies; converting an integer takes as long as two. With 16-bit
// activations 256 high - RAISED is exact, so adding the low sum rounds once, as the conversion would.
template <int R, int FIRST, int COUNT>
INLINE float32x4_t stepped(const int8x16_t (&weight)[8], const Row* rows, float32x2_t step) {
    constexpr int NUMBER = 3 * (2 * R + FIRST), SUMS = BYTES ? 1 : 2;
    const Row& row = rows[R];
    int32x4_t sum[SUMS];
    each<SUMS>([&](auto b) INLINED { sum[b] = vreinterpretq_s32_f32(beginning<NUMBER + b>(raised, rows)); });
    each<COUNT>([&](auto h) INLINED {
        int8x16_t own[SUMS];
        each<SUMS>([&](auto b) INLINED { own[b] = vld1q_s8(row.number[b] + 16 * (FIRST + h)); });
        each<4 * SUMS>([&](auto i) INLINED {
            constexpr int b = i % SUMS, j = i / SUMS;
            sum[b] = vdotq_laneq_s32(sum[b], weight[4 * (FIRST + h) + j], own[b], j);
        });
    });
    const float32x4_t high = vreinterpretq_f32_s32(sum[0]), low = vreinterpretq_f32_s32(sum[SUMS - 1]);
    if constexpr (BYTES) return vfmaq_lane_f32(vld1q_f32(row.back), high, step, 0);
    const float32x4_t most = vfmaq_n_f32(beginning<NUMBER + 2>(less, rows), high, 256);
    return vmulq_lane_f32(vaddq_f32(most, low), step, 0);
}

// Groups of outputs that a single row is multiplied with at a time. With 8-bit weights one is faster (measured).
template <class Weight>
constexpr int AT_ONCE = Weight::BITS == 4 ? 2 : 1;

template <class Weight, int ROWS, int GROUPS = 1>
INLINE void rows_by(const Product& job, const Weight* weight, int64_t row, int64_t group) {
    constexpr int PARTS = Weight::PARTS, HALVES = 2 / PARTS, SCALES = PARTS + Weight::FLOOR;
    const int64_t blocks = blocks_of<Weight>(job);
    const Row* x = rows_of(job.x, job.in, row);
    float32x4_t sum[GROUPS][ROWS] = {};
    Factors<Weight> factors[GROUPS];
    const auto add_span = [&](int64_t b, int i) INLINED {
        each<GROUPS>([&](auto g) INLINED {
            const Weight& block = weight[g * blocks + b];
            const SpanWeights<Weight> span(block, i);
            const char* here = reinterpret_cast<const char*>(&block) + i * SPAN_BYTES<Weight>;
            const char* ahead = here + (GROUPS > 1 ? GROUPS * blocks * sizeof(Weight) : 1024);
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 64);
            int8x16_t number[8];
            unpack(span, number);
            float32x4_t scale[SCALES];
            each<SCALES>([&](auto p) INLINED { scale[p] = scale_of(span, factors[g], p); });
            each<ROWS>([&](auto r) INLINED {
                const float32x2_t own = vld1_f32(&x[r].step);  // and the sum behind it
                each<PARTS>([&](auto p) INLINED {
                    sum[g][r] = vfmaq_f32(sum[g][r], stepped<r, p * HALVES, HALVES>(number, x, own), scale[p]);
                });
                if constexpr (Weight::FLOOR) sum[g][r] = vfmaq_lane_f32(sum[g][r], scale[PARTS], own, 1);
            });
        });
    };
    for (int64_t b = 0; b < blocks; ++b) {
        each<GROUPS>([&](auto g) INLINED { factors[g] = factors_of(weight[g * blocks + b]); });
        for (int i = 0; i < Weight::SPANS; ++i, x += ROWS) add_span(b, i);
    }
    each<GROUPS * ROWS>([&](auto i) INLINED {
        float line[SIDE];  // a copy, so that the sums themselves have no address and stay in registers
        vst1q_f32(line, sum[i / ROWS][i % ROWS]);
        finish<SIDE>(job, line, row + i % ROWS, (group + i / ROWS) * SIDE);
    });
}
