// Whole numbers on x86 without instructions for bytes, included by integers.hpp: eight outputs side by side, multiplied as
// numbers of sixteen bits, two at a time.

// The activations of one row in one span: number * scale, and their sum.
struct Span {
    int16_t number[SPAN];
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

// Row r of x as whole numbers, from input `first` to `last`.
INLINE void wholes(const float* given, float* x, int64_t in, int64_t r, int64_t first, int64_t last) {
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
        each<2>([&](auto i) {
            const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(number[2 * i], number[2 * i + 1]), 0xd8);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(span.number + 16 * i), both);
        });
        span.scale = top / FULL;
        span.sum = span.scale * static_cast<float>(total(sum));
    }
}

INLINE __m256 wide(const uint16_t* half) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half))); }
INLINE __m256 wide(const float* single) { return _mm256_loadu_ps(single); }

// Four inputs of eight outputs, as numbers of sixteen bits: the first four outputs, then the others.
struct Pair {
    __m256i first, second;
};
template <class Weight>
INLINE Pair line(const Weight& span, int j) {
    if constexpr (Weight::BITS == 8) {
        const __m128i* from = reinterpret_cast<const __m128i*>(span.number + 32 * j);
        return {_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1))};
    } else {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(span.number + 32 * (j % 4)));
        const __m256i four = _mm256_and_si256(j < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
        return {_mm256_cvtepu8_epi16(_mm256_castsi256_si128(four)), _mm256_cvtepu8_epi16(_mm256_extracti128_si256(four, 1))};
    }
}

template <class Weight, int ROWS>
INLINE void rows_by(const Job& job, const Weight* weight, int64_t row, int64_t group) {
    constexpr int PARTS = Weight::PARTS, STEPS = SPAN / 4 / PARTS;  // of four inputs, in a part
    const int64_t spans = job.in / SPAN;
    const Span* x = reinterpret_cast<const Span*>(job.x) + row * spans;
    __m256 sum[ROWS];
    each<ROWS>([&](auto r) { sum[r] = _mm256_setzero_ps(); });
    for (int64_t s = 0; s < spans; ++s) {
        each<(sizeof(Weight) + 63) / 64>(
            [&](auto i) { _mm_prefetch(reinterpret_cast<const char*>(weight + s + 12) + 64 * i, _MM_HINT_T0); });
        each<PARTS>([&](auto p) {
            __m256i first[ROWS], second[ROWS];
            each<ROWS>([&](auto r) { first[r] = second[r] = _mm256_setzero_si256(); });
            each<STEPS>([&](auto i) {
                const int j = STEPS * p + i;
                const Pair weights = line(weight[s], j);
                each<ROWS>([&](auto r) {
                    int64_t four;
                    std::memcpy(&four, x[r * spans + s].number + 4 * j, sizeof four);
                    const __m256i own = _mm256_set1_epi64x(four);
                    first[r] = _mm256_add_epi32(first[r], _mm256_madd_epi16(weights.first, own));
                    second[r] = _mm256_add_epi32(second[r], _mm256_madd_epi16(weights.second, own));
                });
            });
            const __m256 scale = wide(weight[s].scale[p]);
            each<ROWS>([&](auto r) {
                const __m256i whole = _mm256_permute4x64_epi64(_mm256_hadd_epi32(first[r], second[r]), 0xd8);
                const __m256 step = _mm256_set1_ps(x[r * spans + s].scale);
                sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(whole), step), scale, sum[r]);
            });
        });
        if constexpr (Weight::FLOOR)
            each<ROWS>([&](auto r) {
                sum[r] = _mm256_fmadd_ps(wide(weight[s].scale[PARTS]), _mm256_set1_ps(x[r * spans + s].sum), sum[r]);
            });
    }
    each<ROWS>([&](auto r) { finish<SIDE>(job, reinterpret_cast<float*>(&sum[r]), row + r, group * SIDE); });
}
