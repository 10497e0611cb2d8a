// Whole numbers on x86, included by integers.hpp: sixteen outputs side by side. Up to three rows are multiplied by vector
// instructions (VNNI); more of them, eight at a time, by matrix ones where there are any (AMX).

constexpr int STEPS = SPAN / 4;  // vectors of a span: 16 outputs, four inputs of each
constexpr int AHEAD = 12;          // spans of weights that are sent for before they are needed
constexpr int FEW = 3;             // rows that vector instructions take at a time; more are worth tiles, by measurement
constexpr int64_t NEAR = 1 << 18;  // bytes of weights that stay in the second-level cache

// The activations of eight rows in one span: (256 high + low) * scale, their sum, and the sum of the whole numbers.
struct Span {
    int8_t high[MOST][SPAN], low[MOST][SPAN];
    float scale[MOST], sum[MOST];
    int32_t whole[MOST];
};
static_assert(sizeof(Span) <= MOST * SPAN * sizeof(float));

// Row r of x as whole numbers, from input `first` to `last`.
INLINE void wholes(const float* given, float* x, int64_t in, int64_t r, int64_t first, int64_t last) {
    Span* to = reinterpret_cast<Span*>(x) + r / MOST * (in / SPAN);
    r %= MOST;
    for (int64_t k = first; k < last; k += SPAN) {
        const __m512 one = _mm512_loadu_ps(given + k), other = _mm512_loadu_ps(given + k + 16);
        const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(one), _mm512_abs_ps(other)));
        const __m512 by = _mm512_set1_ps(top > 0 ? FULL / top : 0);
        const __m512i number[2] = {_mm512_cvtps_epi32(_mm512_mul_ps(one, by)), _mm512_cvtps_epi32(_mm512_mul_ps(other, by))};
        Span& span = to[k / SPAN];
        each<2>([&](auto i) {
            const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(number[i], _mm512_set1_epi32(128)), 8);
            const __m512i low = _mm512_sub_epi32(number[i], _mm512_slli_epi32(high, 8));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(span.high[r] + 16 * i), _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(span.low[r] + 16 * i), _mm512_cvtepi32_epi8(low));
        });
        span.whole[r] = _mm512_reduce_add_epi32(_mm512_add_epi32(number[0], number[1]));
        span.scale[r] = top / FULL;
        span.sum[r] = span.scale[r] * static_cast<float>(span.whole[r]);
    }
}

INLINE __m512 wide(const uint16_t* half) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
}

template <class Weight>
INLINE void send_for(const Weight* weight) {
    const char* there = reinterpret_cast<const char*>(weight + AHEAD);
    each<(sizeof(Weight) + 63) / 64>([&](auto i) { _mm_prefetch(there + 64 * i, _MM_HINT_T0); });
}

// Bytes of sixteen outputs, four inputs a vector.
INLINE void unpack(const Four& span, __m512i (&number)[STEPS]) {
    const __m512i low = _mm512_set1_epi8(15);
    each<STEPS / 2>([&](auto j) {
        const __m512i both = _mm512_loadu_si512(span.number + 64 * j);
        number[j] = _mm512_and_si512(both, low);
        number[j + STEPS / 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    });
}
INLINE void unpack(const Eight& span, __m512i (&number)[STEPS]) {
    each<STEPS>([&](auto j) { number[j] = _mm512_loadu_si512(span.number + 64 * j); });
}

// What whole numbers of a row and span came to, scaled and added to the row's sums.
template <class Weight>
INLINE void settle(__m512& sum, __m512i whole, const Span& x, int r, __m512 scale, __m512 floor) {
    const __m512 own = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(x.scale[r]));
    sum = _mm512_fmadd_ps(own, scale, sum);
    if constexpr (std::is_same_v<Weight, Four>) sum = _mm512_fmadd_ps(floor, _mm512_set1_ps(x.sum[r]), sum);
}

template <class Weight>
INLINE __m512 floor_of(const Weight& weight) {
    if constexpr (std::is_same_v<Weight, Four>) return wide(weight.floor);
    else return _mm512_setzero_ps();
}

template <int ROWS>
INLINE void finish_all(const Job& job, __m512 (&sum)[ROWS], int64_t row, int64_t group) {
    each<ROWS>([&](auto r) { finish<SIDE>(job, reinterpret_cast<float*>(&sum[r]), row + r, group * SIDE); });
}

// Rows by vector instructions, which multiply unsigned bytes by signed ones: weights of eight bits are raised by 128, and
// what that adds is taken off again.
template <class Weight, int ROWS>
INLINE void vectors(const Job& job, const Weight* weight, int64_t row, int64_t group) {
    const int64_t spans = job.in / SPAN;
    const Span* x = reinterpret_cast<const Span*>(job.x) + row / MOST * spans;
    const int from = static_cast<int>(row % MOST);
    __m512 sum[ROWS];
    each<ROWS>([&](auto r) { sum[r] = _mm512_setzero_ps(); });
    for (int64_t s = 0; s < spans; ++s) {
        send_for(weight + s);
        constexpr bool eight = std::is_same_v<Weight, Eight>;
        __m512i number[STEPS];
        unpack(weight[s], number);
        if constexpr (eight)
            each<STEPS>([&](auto j) { number[j] = _mm512_xor_si512(number[j], _mm512_set1_epi8(-128)); });
        const __m512 scale = wide(weight[s].scale), floor = floor_of(weight[s]);
        each<ROWS>([&](auto r) {
            __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
            each<STEPS>([&](auto j) {
                int32_t up, down;
                std::memcpy(&up, x[s].high[from + r] + 4 * j, 4);
                std::memcpy(&down, x[s].low[from + r] + 4 * j, 4);
                high = _mm512_dpbusd_epi32(high, number[j], _mm512_set1_epi32(up));
                low = _mm512_dpbusd_epi32(low, number[j], _mm512_set1_epi32(down));
            });
            __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
            if constexpr (eight) whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(128 * x[s].whole[from + r]));
            settle<Weight>(sum[r], whole, x[s], from + r, scale, floor);
        });
    }
    finish_all(job, sum, row, group);
}

#ifdef TILES

// Matrix registers: products of 16 rows (of eight tokens, high bytes and low ones) by 16 outputs.
struct alignas(64) Shape {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t bytes[16] = {64, 64, SPAN, SPAN, 64, 64};           // two for sums, two for rows, two for weights
    uint8_t lines[16] = {2 * MOST, 2 * MOST, 2 * MOST, 2 * MOST, STEPS, STEPS};
};

// Whether this process may use them: the kernel must be asked once.
bool may_tile() {
    static const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, tile data
    return granted;
}

struct Tiles {
    bool ready;
    explicit Tiles(bool wanted) : ready(wanted && may_tile()) {
        static const Shape shape;
        if (ready) _tile_loadconfig(&shape);
    }
    ~Tiles() {
        if (ready) _tile_release();
    }
};

using Raised = int8_t[STEPS][64];    // the bytes of a span
using Sums = int32_t[2 * MOST][16];  // what high and low bytes of each row came to

#define BARRIER asm volatile("" ::: "memory")  // what tiles read must have been written
#define MULTIPLY(TO, ROWS_, WEIGHTS, x, bytes, sums) \
    BARRIER;                                         \
    _tile_loadd(ROWS_, (x).high, SPAN);              \
    _tile_loadd(WEIGHTS, bytes, 64);                 \
    _tile_zero(TO);                                  \
    _tile_dpbssd(TO, ROWS_, WEIGHTS);                \
    _tile_stored(TO, sums, 64);                      \
    BARRIER

// Up to eight rows by some groups of outputs. Weights come as one stream of spans, and every span goes through three
// hands: its bytes are laid out, multiplied, and what came of it is scaled and added up. Between two hands lie a few
// spans, since what vector instructions have just stored tiles cannot read at once, nor the other way round.
template <class Weight, int ROWS>
struct Stream {
    static constexpr int RING = 4, LEAD = 1, LAG = 2;  // by measurement: what lies longer in between is further away
    const Job& job;
    const Weight* weight;
    const Span* x;
    int64_t spans, count, row, group;
    int64_t at = 0, end = 0;  // spans of x, of what is multiplied and of what is added up
    alignas(64) Raised bytes[RING];
    alignas(64) Sums sums[RING];
    __m512 sum[ROWS];

    INLINE void lay(int64_t i) {
        send_for(weight + i);
        if constexpr (std::is_same_v<Weight, Four>) {
            __m512i number[STEPS];
            unpack(weight[i], number);
            each<STEPS>([&](auto j) { _mm512_store_si512(bytes[i & (RING - 1)][j], number[j]); });
        }
    }
    template <bool ODD>
    INLINE void multiply(int64_t i) {
        const void* from = bytes[i & (RING - 1)];
        if constexpr (std::is_same_v<Weight, Eight>) from = weight[i].number;
        if constexpr (ODD) {
            MULTIPLY(1, 3, 5, x[at], from, sums[i & (RING - 1)]);
        } else {
            MULTIPLY(0, 2, 4, x[at], from, sums[i & (RING - 1)]);
        }
        at = at + 1 == spans ? 0 : at + 1;
    }
    INLINE void add(int64_t i) {
        const __m512 scale = wide(weight[i].scale), floor = floor_of(weight[i]);
        const Sums& found = sums[i & (RING - 1)];
        each<ROWS>([&](auto r) {
            const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(found[r]), 8),
                                                   _mm512_load_si512(found[MOST + r]));
            settle<Weight>(sum[r], whole, x[end], r, scale, floor);
        });
        if (++end < spans) return;
        finish_all(job, sum, row, group++);
        each<ROWS>([&](auto r) { sum[r] = _mm512_setzero_ps(); });
        end = 0;
    }
    template <bool ODD>
    INLINE void step(int64_t i) {
        if (i < count) multiply<ODD>(i);
        if (i >= LAG && i - LAG < count) add(i - LAG);
        if (i + LEAD < count) lay(i + LEAD);
    }
    void run() {
        each<ROWS>([&](auto r) { sum[r] = _mm512_setzero_ps(); });
        for (int64_t i = 0; i < std::min<int64_t>(LEAD, count); ++i) lay(i);
        for (int64_t i = 0; i < count + LAG; i += 2) step<false>(i), step<true>(i + 1);
    }
};

template <class Weight, int ROWS = MOST>
void matrices(const Job& job, const Weight* weight, int64_t row, int64_t first, int64_t last) {
    if constexpr (ROWS > FEW + 1)
        if (job.rows - row < ROWS) return matrices<Weight, ROWS - 1>(job, weight, row, first, last);
    const int64_t spans = job.in / SPAN;
    const Span* x = reinterpret_cast<const Span*>(job.x) + row / MOST * spans;
    Stream<Weight, ROWS> stream{job, weight, x, spans, (last - first) * spans, row, first};
    stream.run();
}

#else

struct Tiles {
    static constexpr bool ready = false;
    explicit Tiles(bool) {}
};
template <class Weight>
void matrices(const Job&, const Weight*, int64_t, int64_t, int64_t) {}

#endif

// Up to FEW rows, of one block, by one group.
template <class Weight, int ROWS = FEW>
void few(const Job& job, const Weight* weight, int64_t row, int64_t count, int64_t group) {
    if constexpr (ROWS > 1)
        if (count < ROWS) return few<Weight, ROWS - 1>(job, weight, row, count, group);
    vectors<Weight, ROWS>(job, weight, row, group);
}

// The rows of a block by some groups of outputs.
template <class Weight>
void block_of(const Job& job, const Weight* weight, bool tiles, int64_t row, int64_t first, int64_t last) {
    const int64_t end = std::min(job.rows, row + MOST);
    if (tiles && end - row > FEW) return matrices(job, weight, row, first, last);
    for (int64_t group = first; group < last; ++group, weight += job.in / SPAN)
        for (int64_t r = row; r < end; r += FEW) few(job, weight, r, std::min<int64_t>(FEW, end - r), group);
}

template <class Weight>
void integers(const Job& job, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const Tiles tiles(bottom - top > FEW);
    const int64_t spans = job.in / SPAN, line = spans * sizeof(Weight);
    const int64_t some = bottom - top > MOST ? std::max<int64_t>(1, NEAR / line) : last - first;  // that all rows meet in turn
    for (int64_t group = first; group < last; group += some) {
        const Weight* weight = static_cast<const Weight*>(job.weight) + group * spans;
        for (int64_t row = top; row < bottom; row += MOST)
            block_of(job, weight, tiles.ready, row, group, std::min(last, group + some));
    }
}
