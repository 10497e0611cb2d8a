// Sixteen scores at a time, included by attention.hpp. Vectors run along a key, so each score is a sum across the lanes of a
// vector. Summing sixteen vectors together takes three instructions per vector; one alone takes eight.

// Sixteen sums across lanes, each by the same additions as `total`.
inline __m512 totals(__m512 (&sum)[16]) {
    const __m512i fours = _mm512_set_epi32(27, 26, 25, 24, 15, 14, 13, 12, 19, 18, 17, 16, 7, 6, 5, 4);
    EACH for (int i = 0; i < 8; ++i)
        sum[i] = _mm512_mask_blend_ps(0xff00, sum[i], sum[i + 8]) + _mm512_shuffle_f32x4(sum[i], sum[i + 8], 0x4e);
    EACH for (int i = 0; i < 4; ++i) {
        const __m512 other = _mm512_permutex2var_ps(sum[i], fours, sum[i + 4]);
        sum[i] = _mm512_mask_blend_ps(0xf0f0, sum[i], sum[i + 4]) + other;
    }
    EACH for (int i = 0; i < 4; i += 2)
        sum[i] = _mm512_mask_blend_ps(0xcccc, sum[i], sum[i + 1]) + _mm512_shuffle_ps(sum[i], sum[i + 1], 0x4e);
    return _mm512_shuffle_ps(sum[0], sum[2], 0x88) + _mm512_shuffle_ps(sum[0], sum[2], 0xdd);
}

// The product of a query and a key of length DIM (0: `dim`), before the lanes are added up.
template <int DIM>
inline __attribute__((always_inline)) __m512 product(const float* query, const float* key, int64_t dim) {
    __m512 sum = _mm512_setzero_ps();
    const auto add = [&](int64_t k) { sum = _mm512_fmadd_ps(_mm512_loadu_ps(query + k), _mm512_loadu_ps(key + k), sum); };
    if constexpr (DIM) {
        EACH for (int64_t k = 0; k < DIM; k += 16) add(k);
    } else {
        for (int64_t k = 0; k < dim; k += 16) add(k);
    }
    return sum;
}

// Up to sixteen scores; those beyond `count` are computed and ignored.
template <int DIM>
void sixteen(const float* query, const float* keys, const int32_t* place, int64_t count, int64_t dim, float scale, float* score) {
    __m512 sum[16];
    if (DIM) dim = DIM;
    if (count >= 16 && place[15] - place[0] == 15) {  // contiguous places
        _Pragma("GCC unroll 16") for (int p = 0; p < 16; ++p) sum[p] = product<DIM>(query, keys + (place[0] + p) * dim, dim);
    } else {
        _Pragma("GCC unroll 16") for (int p = 0; p < 16; ++p)
            sum[p] = product<DIM>(query, keys + place[std::min<int64_t>(p, count - 1)] * dim, dim);
    }
    const __mmask16 some = count >= 16 ? 0xffff : (1 << count) - 1;
    _mm512_mask_storeu_ps(score, some, totals(sum) * scale);
}

// The scores of `n` places for HEADS heads. Returns false if this head dimension is not supported.
template <int HEADS>
bool scores(const Job& job, const float* query, const float* keys, const int32_t* place, int64_t n, float* score, int64_t stride) {
    if (job.dim % 16) return false;
    const auto some = job.dim == 64 ? sixteen<64> : job.dim == 128 ? sixteen<128> : sixteen<0>;
    for (int64_t i = 0; i < n; i += 16)
        for (int h = 0; h < HEADS; ++h) {
            float* to = score + h * stride + i;
            some(query + h * job.dim, keys, place + i, n - i, job.dim, job.scale, to);
            for (int64_t p = 0; job.cap > 0 && p < std::min<int64_t>(16, n - i); ++p)
                to[p] = job.cap * std::tanh(to[p] / job.cap);
        }
    return true;
}
