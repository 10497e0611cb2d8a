// Whole numbers on ARM, included by integers.hpp: four outputs side by side, bytes multiplied four at a time.

// The activations of one row in one span: (256 high + low) * scale, and their sum.
struct Span {
    int8_t high[SPAN], low[SPAN];
    float scale, sum;
};
static_assert(sizeof(Span) <= SPAN * sizeof(float));

// Row r of x as whole numbers, from input `first` to `last`.
INLINE void wholes(const float* given, float* x, int64_t in, int64_t r, int64_t first, int64_t last) {
    Span* to = reinterpret_cast<Span*>(x) + r * (in / SPAN);
    for (int64_t k = first; k < last; k += SPAN) {
        float32x4_t most = vabsq_f32(vld1q_f32(given + k));
        for (int i = 4; i < SPAN; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(given + k + i)));
        const float top = vmaxvq_f32(most), by = top > 0 ? FULL / top : 0;
        Span& span = to[k / SPAN];
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < SPAN; i += 8) {
            const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(given + k + i), by));
            const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(given + k + i + 4), by));
            sum = vaddq_s32(sum, vaddq_s32(a, b));
            const int16x8_t both = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
            const int8x8_t high = vmovn_s16(vrshrq_n_s16(both, 8));
            vst1_s8(span.high + i, high);
            vst1_s8(span.low + i, vmovn_s16(vsubq_s16(both, vshll_n_s8(high, 8))));
        }
        span.scale = top / FULL;
        span.sum = span.scale * static_cast<float>(vaddvq_s32(sum));
    }
}

INLINE float32x4_t wide(const uint16_t* half) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half))); }
INLINE float32x4_t wide(const float* single) { return vld1q_f32(single); }

// Bytes of four outputs, four inputs a vector, eight vectors a span.
template <class Weight>
INLINE void unpack(const Weight& span, int8x16_t (&weight)[8]) {
    if constexpr (Weight::BITS == 8) {
        each<8>([&](auto j) { weight[j] = vld1q_s8(span.number + 16 * j); });
    } else {
        each<4>([&](auto j) {
            const uint8x16_t both = vld1q_u8(span.number + 16 * j);
            weight[j] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            weight[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        });
    }
}

// What COUNT halves of a span come to, from half FIRST on.
template <int FIRST, int COUNT>
INLINE int32x4_t dot(const int8x16_t (&weight)[8], const int8_t* x) {
    int32x4_t sum = vdupq_n_s32(0);
    each<COUNT>([&](auto h) {
        const int8x16_t own = vld1q_s8(x + 16 * (FIRST + h));
        each<4>([&](auto j) { sum = vdotq_laneq_s32(sum, weight[4 * (FIRST + h) + j], own, j); });
    });
    return sum;
}

template <class Weight, int ROWS>
INLINE void rows_by(const Job& job, const Weight* weight, int64_t row, int64_t group) {
    constexpr int PARTS = Weight::PARTS, HALVES = 2 / PARTS;
    const int64_t spans = job.in / SPAN;
    const Span* x = reinterpret_cast<const Span*>(job.x) + row * spans;
    Floats sum[ROWS] = {};
    for (int64_t s = 0; s < spans; ++s) {
        __builtin_prefetch(reinterpret_cast<const char*>(weight + s) + 1024);
        __builtin_prefetch(reinterpret_cast<const char*>(weight + s) + 1088);
        int8x16_t number[8];
        unpack(weight[s], number);
        float32x4_t scale[PARTS];
        each<PARTS>([&](auto p) { scale[p] = wide(weight[s].scale[p]); });
        each<ROWS>([&](auto r) {
            const Span& own = x[r * spans + s];
            each<PARTS>([&](auto p) {
                constexpr int first = decltype(p)::value * HALVES;
                const int32x4_t high = dot<first, HALVES>(number, own.high), low = dot<first, HALVES>(number, own.low);
                const float32x4_t whole = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
                sum[r] = vfmaq_f32(sum[r], vmulq_n_f32(whole, own.scale), scale[p]);
            });
            if constexpr (Weight::FLOOR) sum[r] = vfmaq_n_f32(sum[r], wide(weight[s].scale[PARTS]), own.sum);
        });
    }
    each<ROWS>([&](auto r) { finish<SIDE>(job, reinterpret_cast<float*>(&sum[r]), row + r, group * SIDE); });
}
