// Integer products on x86 with AVX2, with or without 256-bit VNNI, included by integers.hpp: eight outputs interleaved.
// Instructions multiply and add pairs of 16-bit integers, or of bytes.

// sum + the products of pairs of 16-bit integers, or of four unsigned and signed bytes. Without VNNI the sums of two products
// of bytes must fit in 16 bits.
#if defined(__AVXVNNI__)
constexpr bool DOTS = true;
INLINE __m256i dot_words(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
INLINE __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)  // without AVX512BW: no processor, but tests
constexpr bool DOTS = true;
INLINE __m256i dot_words(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_epi32(sum, a, b); }
INLINE __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_epi32(sum, a, b); }
#else
constexpr bool DOTS = false;
INLINE __m256i dot_words(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
INLINE __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) {
    return dot_words(sum, _mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
}
#endif
constexpr bool HALVES = !BYTES && !DOTS;  // whether 16-bit integers are also stored as their bytes
constexpr int HALVED = HALVES ? 3 : 0;    // rows up to which 4-bit weights are multiplied by those bytes; measured

// The activations of one row in one span: number * scale, and their sum; number = 256 high + low, signed bytes.
struct Span {
    std::conditional_t<BYTES, int8_t, int16_t> number[SPAN];
    int8_t high[HALVES ? SPAN : 0], low[HALVES ? SPAN : 0];
    float scale, sum;
};
constexpr int64_t ROW_FLOATS = sizeof(Span) / sizeof(float);  // of a row in one span

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

// Writes the bytes of 16-bit integers.
INLINE void split(Span& span, const __m256i (&number)[2]) {
    __m256i low[2], high[2];
    each<2>([&](auto i) {
        low[i] = _mm256_srai_epi16(_mm256_slli_epi16(number[i], 8), 8);
        high[i] = _mm256_srai_epi16(_mm256_sub_epi16(number[i], low[i]), 8);
    });
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(span.low), ordered(_mm256_packs_epi16(low[0], low[1])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(span.high), ordered(_mm256_packs_epi16(high[0], high[1])));
}

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
        if constexpr (HALVES) split(span, both);
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

// Four inputs of a row for every output: 16-bit integers, or bytes.
INLINE __m256i four_of(const int16_t* number) {
    int64_t four;
    std::memcpy(&four, number, sizeof four);
    return _mm256_set1_epi64x(four);
}
INLINE __m256i four_of(const int8_t* number) {
    int32_t four;
    std::memcpy(&four, number, sizeof four);
    return _mm256_set1_epi32(four);
}

template <class Weight>
constexpr int STEPS = SPAN / 4 / Weight::PARTS;  // of four inputs, in a part of a span

// Part PART of a span by ROWS rows of 16-bit integers; rows lie `spans` spans apart.
template <int PART, class Weight, int ROWS>
INLINE void by_words(__m256i (&whole)[ROWS], const SpanWeights<Weight>& weight, const Span* x, int64_t spans) {
    __m256i first[ROWS], second[ROWS];
    each<ROWS>([&](auto r) { first[r] = second[r] = _mm256_setzero_si256(); });
    each<STEPS<Weight>>([&](auto i) {
        const int j = STEPS<Weight> * PART + i;
        const Pair weights = line(weight, j);
        each<ROWS>([&](auto r) {
            const __m256i own = four_of(x[r * spans].number + 4 * j);
            first[r] = dot_words(first[r], weights.first, own);
            second[r] = dot_words(second[r], weights.second, own);
        });
    });
    each<ROWS>([&](auto r) { whole[r] = ordered(_mm256_hadd_epi32(first[r], second[r])); });
}

// The same with bytes. Instructions multiply unsigned by signed bytes, so the sign of a weight is moved to the activation.
// Without VNNI, the sums of eight pairs of products with 4-bit weights (8 * 2 * 15 * 127) fit in 16 bits.
template <int PART, class Weight, int ROWS>
INLINE void by_bytes(__m256i (&whole)[ROWS], const SpanWeights<Weight>& weight, const Span* x, int64_t spans) {
    constexpr bool is_signed = Weight::BITS > 4, narrow = !is_signed && !DOTS;
    each<ROWS>([&](auto r) { whole[r] = _mm256_setzero_si256(); });
    each<STEPS<Weight>>([&](auto i) {
        const int j = STEPS<Weight> * PART + i;
        const __m256i own_bytes = bytes_at(weight, j), bytes = is_signed ? _mm256_abs_epi8(own_bytes) : own_bytes;
        each<ROWS>([&](auto r) {
            const __m256i four = four_of(x[r * spans].number + 4 * j), own = is_signed ? _mm256_sign_epi8(four, own_bytes) : four;
            if constexpr (narrow) whole[r] = _mm256_add_epi16(whole[r], _mm256_maddubs_epi16(bytes, own));
            else whole[r] = dot_bytes(whole[r], bytes, own);
        });
    });
    if constexpr (narrow) each<ROWS>([&](auto r) { whole[r] = _mm256_madd_epi16(whole[r], _mm256_set1_epi16(1)); });
}

// Weights of 4 bits by the high and low bytes of 16-bit integers: bytes need not be widened, and eight pairs fit in 16 bits.
template <class Weight, int ROWS>
INLINE void by_halves(__m256i (&whole)[ROWS], const SpanWeights<Weight>& weight, const Span* x, int64_t spans) {
    __m256i high[ROWS], low[ROWS];
    each<ROWS>([&](auto r) { high[r] = low[r] = _mm256_setzero_si256(); });
    each<STEPS<Weight>>([&](auto j) {
        const __m256i bytes = bytes_at(weight, j);
        each<ROWS>([&](auto r) {
            high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(bytes, four_of(x[r * spans].high + 4 * j)));
            low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(bytes, four_of(x[r * spans].low + 4 * j)));
        });
    });
    const __m256i ones = _mm256_set1_epi16(1), many = _mm256_set1_epi16(256);
    each<ROWS>([&](auto r) { whole[r] = _mm256_add_epi32(_mm256_madd_epi16(high[r], many), _mm256_madd_epi16(low[r], ones)); });
}

// Part PART of a span by ROWS rows.
template <int PART, class Weight, int ROWS>
INLINE void products(__m256i (&whole)[ROWS], const SpanWeights<Weight>& weight, const Span* x, int64_t spans) {
    if constexpr (BYTES) by_bytes<PART>(whole, weight, x, spans);
    else if constexpr (ROWS <= HALVED && Weight::BITS == 4) by_halves(whole, weight, x, spans);
    else by_words<PART>(whole, weight, x, spans);
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
            products<p>(whole, own, x + s, spans);
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
