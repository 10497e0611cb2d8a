// Scales and floors of a span of weights as float32 vectors of SIDE outputs, included by integers.hpp.

#if defined(NEON)
INLINE float32x4_t wide(const uint16_t* half) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half))); }
INLINE float32x4_t wide(const float* single) { return vld1q_f32(single); }
// Each byte becomes the upper byte of a 32-bit integer, which is converted with 24 binary places.
INLINE float32x4_t wide(const int8_t* byte) {
    constexpr uint8_t NONE = 255;
    alignas(16) static const uint8_t upper[16] = {NONE, NONE, NONE, 0, NONE, NONE, NONE, 1, NONE, NONE, NONE, 2, NONE, NONE, NONE, 3};
    uint32_t four;
    std::memcpy(&four, byte, sizeof four);
    const uint8x16_t spread = vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), vld1q_u8(upper));
    return vcvtq_n_f32_s32(vreinterpretq_s32_u8(spread), 24);
}
#elif defined(__AVX512BW__) && defined(__AVX512VNNI__)
INLINE __m512 wide(const uint16_t* half) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
}
INLINE __m512 wide(const float* single) { return _mm512_loadu_ps(single); }
INLINE __m512 wide(const int8_t* byte) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(byte))));
}
#else
INLINE __m256 wide(const uint16_t* half) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half))); }
INLINE __m256 wide(const float* single) { return _mm256_loadu_ps(single); }
INLINE __m256 wide(const int8_t* byte) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(byte))));
}
#endif

// The factors of a block's scales and floors, read once for all of its spans.
template <class Weight>
struct Factors {
    decltype(wide(static_cast<const float*>(nullptr))) factor[Weight::FACTORS ? 1 + Weight::FLOOR : 0];
};
template <class Weight>
INLINE Factors<Weight> factors_of(const Weight& block) {
    Factors<Weight> own;
    if constexpr (Weight::FACTORS) each<1 + Weight::FLOOR>([&](auto i) INLINED { own.factor[i] = wide(block.factor[i]); });
    if constexpr (Weight::BITS == 6) own.factor[0] = own.factor[0] * 0.25f;
    return own;
}

// The scale of a part of the span, or behind the parts the floor. The product with a factor is exact.
template <class Weight>
INLINE auto scale_of(const SpanWeights<Weight>& span, const Factors<Weight>& factors, int part) {
    const auto own = wide(span.block.scale[span.at][part]);
    if constexpr (Weight::FACTORS) return own * factors.factor[part / Weight::PARTS];
    else return own;
}
