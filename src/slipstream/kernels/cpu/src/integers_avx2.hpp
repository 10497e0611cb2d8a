// Integer products on x86 with AVX2, without VNNI, included by integers.hpp: eight outputs interleaved. Instructions multiply
// and add pairs, of 16-bit integers or of bytes.

// The activations of one row in one span: number * scale, and their sum.
struct Span {
    std::conditional_t<BYTES, int8_t, int16_t> number[SPAN];
    float scale, sum;
};
static_assert(sizeof(Span) <= SPAN * sizeof(float));

INLINE float largest(__m256 x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

INLINE int32_t total(__m256i x) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

// Packing two vectors works on halves; this restores their order.
INLINE __m256i ordered(__m256i packed) { return _mm256_permute4x64_epi64(packed, 0xd8); }

// Round row r of x to integers, from input `first` to `last`.
INLINE void wholes(const float* given, float* x, int64_t, int64_t in, int64_t r, int64_t first, int64_t last) {
    Span* to = reinterpret_cast<Span*>(x) + r * (in / SPAN);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t k = first; k < last; k += SPAN) {
        __m256 part[4], most = _mm256_setzero_ps();
        each<4>([&](auto i) {
            part[i] = _mm256_loadu_ps(given + k + 8 * i);
            most = _mm256_max_ps(most, _mm256_andnot_ps(sign, part[i]));
        });
        const float top = largest(most);
        const __m256 by = _mm256_set1_ps(top > 0 ? FULL / top : 0);
        Span& span = to[k / SPAN];
        __m256i number[4], sum = _mm256_setzero_si256();
        each<4>([&](auto i) {
            number[i] = _mm256_cvtps_epi32(_mm256_mul_ps(part[i], by));
            sum = _mm256_add_epi32(sum, number[i]);
        });
        __m256i* place = reinterpret_cast<__m256i*>(span.number);
        __m256i both[2];
        each<2>([&](auto i) { both[i] = ordered(_mm256_packs_epi32(number[2 * i], number[2 * i + 1])); });
        if constexpr (BYTES) _mm256_storeu_si256(place, ordered(_mm256_packs_epi16(both[0], both[1])));
        else each<2>([&](auto i) { _mm256_storeu_si256(place + i, both[i]); });
        span.scale = step_of(top);
        span.sum = span.scale * static_cast<float>(total(sum));
    }
}

// The bytes of four inputs of eight outputs.
template <class Weight>
INLINE __m256i bytes_at(const SpanWeights<Weight>& span, int j) {
    const __m256i* from = reinterpret_cast<const __m256i*>(span.number);
    if constexpr (Weight::BITS == 8) return _mm256_loadu_si256(from + j);
    if constexpr (Weight::BITS == 4) {
        const __m256i both = _mm256_loadu_si256(from + j % 4);
        return _mm256_and_si256(j < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    }
    from += j / 4 * 3;
    if (j % 4 < 3) return _mm256_and_si256(_mm256_loadu_si256(from + j % 4), _mm256_set1_epi8(-4));
    const auto two_bits = [&](int i) INLINED {
        const __m256i line = _mm256_slli_epi16(_mm256_loadu_si256(from + i), 6 - 2 * i);
        return _mm256_and_si256(line, _mm256_set1_epi8(static_cast<char>(0xc0 >> 2 * i)));
    };
    return _mm256_or_si256(_mm256_or_si256(two_bits(0), two_bits(1)), two_bits(2));
}

// Four inputs of eight outputs as 16-bit integers: the first four outputs, then the others.
struct Pair {
    __m256i first, second;
};
template <class Weight>
INLINE Pair line(const SpanWeights<Weight>& span, int j) {
    if constexpr (Weight::BITS == 8) {
        const __m128i* from = reinterpret_cast<const __m128i*>(span.number + 32 * j);
        return {_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1))};
    } else {
        const __m256i bytes = bytes_at(span, j);
        return {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1))};
    }
}

// Part PART of a span by ROWS rows of 16-bit integers; rows lie `spans` spans apart.
template <int PART, class Weight, int ROWS>
INLINE void wholes_of(__m256i (&whole)[ROWS], const SpanWeights<Weight>& weight, const Span* x, int64_t spans) {
    constexpr int STEPS = SPAN / 4 / Weight::PARTS;  // of four inputs, in a part
    __m256i first[ROWS], second[ROWS];
    each<ROWS>([&](auto r) { first[r] = second[r] = _mm256_setzero_si256(); });
    each<STEPS>([&](auto i) {
        const int j = STEPS * PART + i;
        const Pair weights = line(weight, j);
        each<ROWS>([&](auto r) {
            int64_t four;
            std::memcpy(&four, x[r * spans].number + 4 * j, sizeof four);
            const __m256i own = _mm256_set1_epi64x(four);
            first[r] = _mm256_add_epi32(first[r], _mm256_madd_epi16(weights.first, own));
            second[r] = _mm256_add_epi32(second[r], _mm256_madd_epi16(weights.second, own));
        });
    });
    each<ROWS>([&](auto r) { whole[r] = ordered(_mm256_hadd_epi32(first[r], second[r])); });
}

// The same with bytes. The instruction adds pairs of products (unsigned by signed) in 16 bits, so they must fit: 2 * 128 * 127
// does, if the sign of a weight is moved to the activation. With 4-bit weights, eight pairs (8 * 2 * 15 * 127) fit.
template <int PART, class Weight, int ROWS>
INLINE void bytes_of(__m256i (&whole)[ROWS], const SpanWeights<Weight>& weight, const Span* x, int64_t spans) {
    constexpr int STEPS = SPAN / 4 / Weight::PARTS;
    const __m256i ones = _mm256_set1_epi16(1);
    each<ROWS>([&](auto r) { whole[r] = _mm256_setzero_si256(); });
    each<STEPS>([&](auto i) {
        const int j = STEPS * PART + i;
        constexpr bool is_signed = Weight::BITS > 4;
        const __m256i own_bytes = bytes_at(weight, j), bytes = is_signed ? _mm256_abs_epi8(own_bytes) : own_bytes;
        each<ROWS>([&](auto r) {
            int32_t some;
            std::memcpy(&some, x[r * spans].number + 4 * j, sizeof some);
            const __m256i own = _mm256_set1_epi32(some);
            const __m256i pairs = _mm256_maddubs_epi16(bytes, is_signed ? _mm256_sign_epi8(own, own_bytes) : own);
            if constexpr (is_signed) whole[r] = _mm256_add_epi32(whole[r], _mm256_madd_epi16(pairs, ones));
            else whole[r] = _mm256_add_epi16(whole[r], pairs);
        });
    });
    if constexpr (Weight::BITS == 4) each<ROWS>([&](auto r) { whole[r] = _mm256_madd_epi16(whole[r], ones); });
}

template <class Weight>
constexpr int AT_ONCE = 1;  // groups of outputs that a single row is multiplied with at a time

template <class Weight, int ROWS, int GROUPS = 1>
INLINE void rows_by(const Product& job, const Weight* weight, int64_t row, int64_t group) {
    constexpr int PARTS = Weight::PARTS;
    const int64_t spans = job.in / SPAN;
    const Span* x = reinterpret_cast<const Span*>(job.x) + row * spans;
    __m256 sum[ROWS];
    each<ROWS>([&](auto r) { sum[r] = _mm256_setzero_ps(); });
    const auto add_span = [&](const SpanWeights<Weight>& own, const Factors<Weight>& factors, int64_t s) INLINED {
        const char* ahead = reinterpret_cast<const char*>(weight) + (s + 12) * SPAN_BYTES<Weight>;
        each<(SPAN_BYTES<Weight> + 63) / 64>([&](auto i) { _mm_prefetch(ahead + 64 * i, _MM_HINT_T0); });
        each<PARTS>([&](auto p) {
            __m256i whole[ROWS];
            if constexpr (BYTES) bytes_of<p>(whole, own, x + s, spans);
            else wholes_of<p>(whole, own, x + s, spans);
            const __m256 scale = scale_of(own, factors, p);
            each<ROWS>([&](auto r) {
                const __m256 step = _mm256_set1_ps(x[r * spans + s].scale);
                sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(whole[r]), step), scale, sum[r]);
            });
        });
        if constexpr (Weight::FLOOR) {
            const __m256 floor = scale_of(own, factors, PARTS);
            each<ROWS>([&](auto r) { sum[r] = _mm256_fmadd_ps(floor, _mm256_set1_ps(x[r * spans + s].sum), sum[r]); });
        }
    };
    for (int64_t b = 0; b < blocks_of<Weight>(job); ++b) {
        const Factors<Weight> factors = factors_of(weight[b]);
        for (int i = 0; i < Weight::SPANS; ++i)
            add_span(SpanWeights<Weight>(weight[b], i), factors, b * Weight::SPANS + i);
    }
    each<ROWS>([&](auto r) { finish<SIDE>(job, reinterpret_cast<float*>(&sum[r]), row + r, group * SIDE); });
}
