// Several rows by vector instructions, included by integers_avx512.hpp. A panel is one span of two groups of outputs. It is
// unpacked once into the first-level cache and multiplied by all rows, block by block. Each activation that is loaded is
// multiplied by two vectors of weights. A block has sixteen independent sums, which hides the latency of the products. The sums
// of all rows stay in the cache between panels.

constexpr int PAIR = 2;           // groups of a panel
constexpr int64_t MIN_ROWS = 4;   // fewer rows are faster without panels (measured)
constexpr int64_t MAX_ROWS = 64;  // rows whose sums fit in the first-level cache beside a panel

// Bytes without a sign (128 is added to signed weights), and float32 scales with the floor behind them.
template <class Weight>
struct alignas(64) Panel {
    static constexpr int SCALES = Weight::PARTS + Weight::FLOOR;
    uint8_t number[PAIR][STEPS][64];
    float scale[PAIR][SCALES][SIDE];
};
using PairSums = float[PAIR][SIDE];  // of one row

// Unpacks span s of two groups.
template <class Weight>
INLINE void fill(Panel<Weight>& panel, const Weight* weight, int64_t blocks, int64_t s) {
    each<PAIR>([&](auto g) INLINED {
        const SpanWeights<Weight> span(weight + g * blocks, s);
        const Factors<Weight> factors = factors_of(span.block);
        __m512i number[STEPS];
        unpack(span, number, _mm512_set1_epi8(-128));
        each<STEPS>([&](auto j) INLINED { _mm512_store_si512(panel.number[g][j], number[j]); });
        each<Panel<Weight>::SCALES>([&](auto p) INLINED { _mm512_store_ps(panel.scale[g][p], scale_of(span, factors, p)); });
    });
}

// Prefetches the weights of a later span. Its cache lines are requested one by one between the products, because the processor
// has few line fill buffers.
template <class Weight>
struct Prefetch {
    static constexpr int LINES = (SPAN_BYTES<Weight> + 63) / 64, SOME = PAIR * LINES / (BYTES ? STEPS : 2 * STEPS) + 1;
    const char* line[PAIR];

    Prefetch(const Weight* weight, int64_t blocks, int64_t s) {
        const int64_t group = blocks * sizeof(Weight);
        const int64_t further = s + AHEAD < blocks * Weight::SPANS ? 0 : group;  // to the next pair
        line[0] = reinterpret_cast<const char*>(weight) + (s + AHEAD) * SPAN_BYTES<Weight> + further;
        line[1] = line[0] + group;
    }
    template <int STEP>
    INLINE void issue() const {
        each<SOME>([&](auto i) INLINED {
            constexpr int at = SOME * STEP + i;
            if constexpr (at < PAIR * LINES) _mm_prefetch(line[at % PAIR] + 64 * (at / PAIR), _MM_HINT_T0);
        });
    }
};

// Adds the products of part PART of a panel, by the low or high bytes at `x`, to the sums of ROWS rows.
template <class Weight, int PART, bool LOW, int ROWS>
INLINE void multiply_panel(__m512i (&sum)[ROWS][PAIR], const Panel<Weight>& panel, const int8_t (*x)[SPAN],
                           const Prefetch<Weight>& prefetch) {
    constexpr int COUNT = STEPS / Weight::PARTS;
    each<COUNT>([&](auto i) INLINED {
        constexpr int j = COUNT * PART + i;
        prefetch.template issue<j + LOW * STEPS>();
        const __m512i first = _mm512_load_si512(panel.number[0][j]), second = _mm512_load_si512(panel.number[1][j]);
        each<ROWS>([&](auto r) INLINED {
            int32_t four;
            std::memcpy(&four, x[r] + 4 * j, sizeof four);
            const __m512i own = _mm512_set1_epi32(four);
            asm("vpdpbusd %2, %1, %0" : "+v"(sum[r][0]) : "v"(first), "v"(own));
            asm("vpdpbusd %2, %1, %0" : "+v"(sum[r][1]) : "v"(second), "v"(own));
        });
    });
}

// Scales the integer sums of rows `from` on in a part of a span and adds them to `sums`.
template <class Weight, int PART, int ROWS>
INLINE void settle_panel(__m512i (&whole)[ROWS][PAIR], const Panel<Weight>& panel, const Span& x, int from, PairSums* sums) {
    each<PAIR>([&](auto g) INLINED {
        const __m512 scale = _mm512_load_ps(panel.scale[g][PART]);
        const __m512 floor = _mm512_load_ps(panel.scale[g][Panel<Weight>::SCALES - 1]);
        each<ROWS>([&](auto r) INLINED {
            const int32_t raised = 128 * total<Weight::PARTS, PART>(x, from + r);
            if constexpr (Weight::BITS > 4) whole[r][g] = _mm512_sub_epi32(whole[r][g], _mm512_set1_epi32(raised));
            __m512 sum = _mm512_load_ps(sums[r][g]);
            settle<Weight, PART>(sum, whole[r][g], x, from + r, scale, floor);
            _mm512_store_ps(sums[r][g], sum);
        });
    });
}

// ROWS rows of the block x, from row `from` of it on, by a panel.
template <class Weight, int ROWS>
INLINE void by_panel(const Panel<Weight>& panel, const Span& x, int from, PairSums* sums, const Prefetch<Weight>& prefetch) {
    each<Weight::PARTS>([&](auto part) INLINED {
        __m512i sum[ROWS][PAIR];
        each<ROWS>([&](auto r) INLINED { sum[r][0] = sum[r][1] = _mm512_setzero_si512(); });
        multiply_panel<Weight, part, false>(sum, panel, x.number + from, prefetch);
        if constexpr (!BYTES) {  // those were the high bytes
            each<ROWS>([&](auto r) INLINED {
                sum[r][0] = _mm512_slli_epi32(sum[r][0], 8), sum[r][1] = _mm512_slli_epi32(sum[r][1], 8);
            });
            multiply_panel<Weight, part, true>(sum, panel, x.number + MOST + from, prefetch);
        }
        settle_panel<Weight, part>(sum, panel, x, from, sums);
    });
}

// Up to MAX_ROWS rows by a pair of groups, in blocks of ROWS. The last block may have rows too many.
template <class Weight, int ROWS>
void panels(const Product& job, const Weight* weight, int64_t row, int64_t end, int64_t group) {
    alignas(64) PairSums sums[MAX_ROWS];
    const int64_t blocks = blocks_of<Weight>(job), spans = job.in / SPAN, count = (end - row + ROWS - 1) / ROWS;
    std::memset(sums, 0, count * ROWS * sizeof sums[0]);
    Panel<Weight> panel;
    for (int64_t s = 0; s < spans; ++s) {
        fill(panel, weight, blocks, s);
        const Prefetch<Weight> prefetch(weight, blocks, s);
        for (int64_t r = row; r < row + count * ROWS; r += ROWS) {
            const Span* x = reinterpret_cast<const Span*>(job.x) + r / HELD * spans + s;
            by_panel<Weight, ROWS>(panel, *x, static_cast<int>(r % HELD), sums + (r - row), prefetch);
        }
    }
    for (int64_t r = row; r < end; ++r)
        each<PAIR>([&](auto g) INLINED { finish<SIDE>(job, sums[r - row][g], r, (group + g) * SIDE); });
}

// Rows by a pair of groups. Fewer than MIN_ROWS rows are left over; returns the first of them.
template <class Weight>
int64_t rows_by_pair(const Product& job, const Weight* weight, int64_t row, int64_t end, int64_t group) {
    for (int64_t left; (left = end - row) >= MIN_ROWS;) {
        const bool all = left % MOST > 6;  // the last block may have a row too many
        const int64_t count = std::min(MAX_ROWS, left < MOST || all ? left : left / MOST * MOST);
        if (count > 6) panels<Weight, MOST>(job, weight, row, row + count, group);
        else if (count > 4) panels<Weight, 6>(job, weight, row, end, group);
        else panels<Weight, 4>(job, weight, row, end, group);
        row += count;
    }
    return row;
}
