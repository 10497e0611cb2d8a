// Integer products on x86 with AVX-512, included by integers.hpp: sixteen outputs interleaved. Few rows use vector instructions
// (VNNI). More rows use matrix instructions (AMX) if available, in blocks of eight rows, or sixteen with 8-bit activations, and
// otherwise vector instructions on panels of weights.

constexpr int STEPS = SPAN / 4;    // vectors of a span: 16 outputs, four inputs of each
constexpr int AHEAD = 12;          // prefetch distance, in spans of weights
constexpr int FEW = BYTES ? 6 : 3;  // rows per call of the vector code; measured: more are faster with tiles
constexpr int MANY = BYTES ? HELD : 3 * HELD;  // rows per call of the tile code: whole blocks whose sums fit in registers
constexpr int64_t NEAR = 1 << 18;  // bytes of weights that stay in the second-level cache

// The activations of a block of rows in one span: integers and their scale, the sum of the activations, and the sums of the
// integers, of all and of the first half. 16-bit integers are 256 high + low; the high bytes of all rows come first.
struct Span {
    int8_t number[2 * MOST][SPAN];
    float scale[HELD], sum[HELD];
    int32_t whole[HELD], front[HELD];
};
constexpr int64_t ROW_FLOATS = SPAN;  // of a row in one span, at most
static_assert(sizeof(Span) <= MOST * ROW_FLOATS * sizeof(float));

// Round row r of x to integers, from input `first` to `last`.
INLINE void wholes(const float* given, float* x, int64_t, int64_t in, int64_t r, int64_t first, int64_t last) {
    Span* to = reinterpret_cast<Span*>(x) + r / HELD * (in / SPAN);
    r %= HELD;
    for (int64_t k = first; k < last; k += SPAN) {
        const __m512 one = _mm512_loadu_ps(given + k), other = _mm512_loadu_ps(given + k + 16);
        const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(one), _mm512_abs_ps(other)));
        const __m512 by = _mm512_set1_ps(top > 0 ? FULL / top : 0);
        const __m512i front = _mm512_cvtps_epi32(_mm512_mul_ps(one, by)), back = _mm512_cvtps_epi32(_mm512_mul_ps(other, by));
        const __m512i mixed = _mm512_packs_epi32(front, back), order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
        const __m512i number = _mm512_permutexvar_epi64(order, mixed);
        Span& span = to[k / SPAN];
        const __m256i low = _mm512_cvtepi16_epi8(number);  // the low byte, signed
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(span.number[BYTES ? r : MOST + r]), low);
        if constexpr (!BYTES) {
            const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(number, _mm512_set1_epi16(128)), 8);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(span.number[r]), _mm512_cvtepi16_epi8(high));
        }
        const __m512i pairs = _mm512_madd_epi16(number, _mm512_set1_epi16(1));
        span.front[r] = _mm512_mask_reduce_add_epi32(0x00ff, pairs);
        span.whole[r] = _mm512_reduce_add_epi32(pairs);
        span.scale[r] = step_of(top);
        span.sum[r] = span.scale[r] * static_cast<float>(span.whole[r]);
    }
}

// Zero the missing rows of the last block: tiles multiply them too, and old memory may hold numbers that are slow to multiply.
INLINE void nothing(float* x, int64_t in, int64_t rows, int64_t first, int64_t last) {
    Span* to = reinterpret_cast<Span*>(x) + (rows - 1) / HELD * (in / SPAN);
    for (int64_t k = first; k < last; k += SPAN)
        for (int64_t r = (rows - 1) % HELD + 1; r < HELD; ++r) to[k / SPAN].scale[r] = to[k / SPAN].sum[r] = 0;
}

template <class Weight>
INLINE void send_for(const Weight* weight, int64_t span, int64_t further = 0) {
    const char* there = reinterpret_cast<const char*>(weight) + (span + AHEAD) * SPAN_BYTES<Weight> + further;
    _Pragma("GCC unroll 16") for (int64_t i = 0; i < (SPAN_BYTES<Weight> + 63) / 64; ++i)
        _mm_prefetch(there + 64 * i, _MM_HINT_T0);  // not with `each`: some compilers remove it as a function without effect
}

// sum + the products of four unsigned bytes of `weights` and the four signed bytes at `x`, for every output. Inline assembly,
// because compilers emit two instructions for the intrinsic.
INLINE __m512i dot(__m512i sum, __m512i weights, const int8_t* x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const int32_t(*)[1]>(x)));
    return sum;
}

// Bytes of sixteen outputs, four inputs a vector. `flip`: a bit to be changed in 6-bit and 8-bit weights.
template <class Weight>
INLINE void unpack(const SpanWeights<Weight>& span, __m512i (&number)[STEPS], __m512i flip = _mm512_setzero_si512()) {
    if constexpr (Weight::BITS == 8) {
        each<STEPS>([&](auto j) { number[j] = _mm512_xor_si512(_mm512_loadu_si512(span.number + 64 * j), flip); });
    } else if constexpr (Weight::BITS == 6) {
        constexpr int CHOOSE = 0xca, KEEP = 0x6a;  // a ? b : c; (a & b) ^ c
        const __m512i upper = _mm512_set1_epi8(-4), two = _mm512_set1_epi8(-64), four = _mm512_set1_epi8(-16);
        each<2>([&](auto half) INLINED {
            __m512i line[3];
            each<3>([&](auto j) INLINED { line[j] = _mm512_loadu_si512(span.number + 64 * (3 * half + j)); });
            each<3>([&](auto j) INLINED { number[4 * half + j] = _mm512_ternarylogic_epi32(line[j], upper, flip, KEEP); });
            each<3>([&](auto j) INLINED { line[j] = _mm512_slli_epi16(line[j], 6 - 2 * j); });
            const __m512i front = _mm512_ternarylogic_epi32(two, line[0], line[1], CHOOSE);
            const __m512i all = _mm512_ternarylogic_epi32(four, front, line[2], CHOOSE);
            number[4 * half + 3] = _mm512_ternarylogic_epi32(all, upper, flip, KEEP);
        });
    } else {
        const __m512i low = _mm512_set1_epi8(15);
        each<STEPS / 2>([&](auto j) {
            const __m512i both = _mm512_loadu_si512(span.number + 64 * j);
            number[j] = _mm512_and_si512(both, low);
            number[j + STEPS / 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        });
    }
}

// The floor of a span, if it has one.
template <class Weight>
INLINE __m512 floor_of(const SpanWeights<Weight>& weight, const Factors<Weight>& factors) {
    if constexpr (Weight::FLOOR) return scale_of(weight, factors, Weight::PARTS);
    else return _mm512_setzero_ps();
}

// Scales the integer sum of a row and part of a span and adds it to the row's sum; after the last part also the floor.
template <class Weight, int PART>
INLINE void settle(__m512& sum, __m512i whole, const Span& x, int r, __m512 scale, __m512 floor) {
    const __m512 own = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(x.scale[r]));
    sum = _mm512_fmadd_ps(own, scale, sum);
    if constexpr (Weight::FLOOR && PART + 1 == Weight::PARTS) sum = _mm512_fmadd_ps(floor, _mm512_set1_ps(x.sum[r]), sum);
}

template <int ROWS>
INLINE void finish_all(const Product& job, __m512 (&sum)[ROWS], int64_t row, int64_t group) {
    each<ROWS>([&](auto r) { finish<SIDE>(job, reinterpret_cast<float*>(&sum[r]), row + r, group * SIDE); });
}

// The sum of the integers of a row in one part of a span.
template <int PARTS, int PART>
INLINE int32_t total(const Span& x, int r) {
    if constexpr (PARTS == 1) return x.whole[r];
    else return PART ? x.whole[r] - x.front[r] : x.front[r];
}

// Combines the sums of high and low bytes; 8-bit activations have no low bytes.
INLINE __m512i joined(__m512i high, __m512i low) {
    return BYTES ? high : _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

// Rows by vector instructions, which multiply unsigned by signed bytes. 128 is added to signed weights, and its contribution
// is subtracted afterwards.
template <class Weight, int ROWS>
INLINE void vectors(const Product& job, const Weight* weight, int64_t row, int64_t group) {
    constexpr int PARTS = Weight::PARTS;
    const int64_t spans = job.in / SPAN;
    const Span* x = reinterpret_cast<const Span*>(job.x) + row / HELD * spans;
    const int from = static_cast<int>(row % HELD);
    __m512 sum[ROWS];
    each<ROWS>([&](auto r) { sum[r] = _mm512_setzero_ps(); });
    const auto add_span = [&](const SpanWeights<Weight>& own, const Factors<Weight>& factors, int64_t s, int64_t further) INLINED {
        send_for(weight, s, further);
        __m512i number[STEPS];
        unpack(own, number, _mm512_set1_epi8(-128));
        const __m512 floor = floor_of(own, factors);
        each<PARTS>([&](auto p) {
            constexpr int part = decltype(p)::value;
            const __m512 scale = scale_of(own, factors, part);
            each<ROWS>([&](auto r) {
                __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
                each<STEPS / PARTS>([&](auto i) {
                    const int j = STEPS / PARTS * part + i;
                    high = dot(high, number[j], x[s].number[from + r] + 4 * j);
                    if constexpr (!BYTES) low = dot(low, number[j], x[s].number[MOST + from + r] + 4 * j);
                });
                __m512i whole = joined(high, low);
                const int32_t raised = 128 * total<PARTS, part>(x[s], from + r);
                if constexpr (Weight::BITS > 4) whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(raised));
                settle<Weight, part>(sum[r], whole, x[s], from + r, scale, floor);
            });
        });
    };
    const char* here = reinterpret_cast<const char*>(weight) + AHEAD * SPAN_BYTES<Weight>;
    const auto add_block = [&](int64_t b, int64_t further) INLINED {
        const Factors<Weight> factors = factors_of(weight[b]);
        for (int i = 0; i < Weight::SPANS; ++i)
            add_span(SpanWeights<Weight>(weight[b], i), factors, b * Weight::SPANS + i, further);
    };
    const int64_t blocks = blocks_of<Weight>(job);
    const int64_t left = job.end ? (job.end - here) / static_cast<int64_t>(sizeof(Weight)) : blocks;  // before prefetches jump
    int64_t b = 0, further = 0;
    if constexpr (ROWS > 2) {  // bound by arithmetic
        for (; b < blocks; ++b) add_block(b, 0);
    } else {
        for (const int64_t stop : {std::clamp<int64_t>(left, 0, blocks), blocks}) {
            for (; b < stop; ++b) add_block(b, further);
            further = job.jump;
        }
    }
    finish_all(job, sum, row, group);
}

#ifdef TILES

// Tile registers (AMX): products of 16 lines of bytes by 16 outputs. The lines are sixteen rows, or the high and low bytes of
// eight rows; with fewer rows eight lines. One register holds sums, one rows, one weights. The processor renames them, and
// measurements were best with the fewest registers. Spans of two parts are two products with a weight register each.
template <int PARTS, uint8_t LINES>
struct alignas(64) Shape {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t bytes[16] = {64, SPAN / PARTS, 64, 64};
    uint8_t lines[16] = {LINES, LINES, STEPS / PARTS, STEPS / PARTS};
};

// Whether this process may use tile registers: Linux grants them on request.
bool may_tile() {
    static const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, tile data
    return granted;
}

template <int PARTS>
struct Tiles {
    bool ready;
    explicit Tiles(int64_t rows) : ready(rows > FEW && may_tile()) {
        static const Shape<PARTS, 2 * MOST> whole;
        static const Shape<PARTS, MOST> half;
        if (ready) _tile_loadconfig(BYTES && rows <= MOST ? static_cast<const void*>(&half) : &whole);
    }
    ~Tiles() {
        if (ready) _tile_release();
    }
};

using Raised = int8_t[STEPS][64];    // the bytes of a span
using Sums = int32_t[2 * MOST][16];  // the sum of each line of bytes

#define BARRIER asm volatile("" ::: "memory")  // memory that tiles read must be written first

// Writes the finished sums of rows. Not inlined, because the loop around it needs the registers.
__attribute__((noinline)) void hand_over(const Product& job, float (*line)[SIDE], int64_t row, int64_t rows, int64_t group) {
    for (int64_t r = 0; r < rows; ++r) finish<SIDE>(job, line[r], row + r, group * SIDE);
}

// The bytes of a span as tiles read them: 8-bit weights in place, others unpacked.
template <class Weight>
INLINE const char* laid(const SpanWeights<Weight>& weight, const Raised& bytes) {
    if constexpr (Weight::BITS == 8) return reinterpret_cast<const char*>(weight.number);
    else return reinterpret_cast<const char*>(bytes);
}
template <class Weight>
INLINE void lay(const SpanWeights<Weight>& weight, Raised& bytes) {
    if constexpr (Weight::BITS == 8) return;
    __m512i number[STEPS];
    unpack(weight, number);
    each<STEPS>([&](auto j) INLINED { _mm512_store_si512(bytes[j], number[j]); });
}

// Loads the weights of a span into their tiles.
template <class Weight>
INLINE void load(const SpanWeights<Weight>& weight, const Raised& bytes) {
    const char* from = laid(weight, bytes);
    _tile_loadd(2, from, 64);
    if constexpr (Weight::PARTS == 2) _tile_loadd(3, from + 64 * STEPS / 2, 64);
}

// Multiplies a block of rows by the span of weights in the tiles.
template <int PARTS>
INLINE void multiply(const Span& x, Sums (&sums)[PARTS]) {
    _tile_loadd(1, x.number, SPAN);
    _tile_zero(0);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums[0], 64);
    if constexpr (PARTS == 2) {
        _tile_loadd(1, &x.number[0][SPAN / 2], SPAN);
        _tile_zero(0);
        _tile_dpbssd(0, 1, 3);
        _tile_stored(0, sums[1], 64);
    }
    BARRIER;
}

// Scales the integer sums of a block's rows in a part of a span and adds them to the rows' sums.
template <class Weight, int PART, int BLOCK, int ROWS>
INLINE void add(__m512 (&sum)[ROWS], const Sums& found, const Span& x, __m512 scale, __m512 floor) {
    each<std::min(HELD, ROWS - BLOCK * HELD)>([&](auto r) INLINED {
        const __m512i high = _mm512_load_si512(found[r]), low = _mm512_load_si512(found[(MOST + r) % (2 * MOST)]);
        settle<Weight, PART>(sum[BLOCK * HELD + r], joined(high, low), x, r, scale, floor);
    });
}

// Blocks of rows by groups of outputs. The spans of weights pass through a pipeline of three stages: unpack the bytes,
// multiply, scale and add. The stages work a few spans apart, because tiles cannot read at once what vector instructions
// just stored, and vice versa. Multiplying and adding alternate block by block, because out-of-order execution does not
// reach much further than one of each.
template <class Weight, int ROWS>
struct Stream {
    static constexpr int LEAD = 2, LAG = 2, BLOCKS = (ROWS + HELD - 1) / HELD, RING = 4, PARTS = Weight::PARTS;
    static_assert(LEAD < RING && LAG < RING);
    const Weight* weight;
    const Span* x;
    int64_t spans, count;
    int64_t at = 0, end = 0;  // next span to multiply, next span to add up
    alignas(64) Raised bytes[RING];
    alignas(64) Sums sums[RING][BLOCKS][PARTS];

    Stream(const Product& job, const Weight* weight, int64_t row, int64_t groups) : weight(weight), spans(job.in / SPAN) {
        x = reinterpret_cast<const Span*>(job.x) + row / HELD * spans;
        count = groups * spans;
    }
    INLINE void lay_out(int64_t i) {
        if (i >= count) return;
        send_for(weight, i);
        lay(SpanWeights<Weight>(weight, i), bytes[i % RING]);
    }
    template <bool NEW, bool OLD>
    INLINE void step(__m512 (&sum)[ROWS], int64_t i) {
        const SpanWeights<Weight> old(weight, OLD ? i - LAG : i);
        const Factors<Weight> factors = factors_of(old.block);
        const __m512 front = scale_of(old, factors, 0), back = scale_of(old, factors, PARTS - 1), floor = floor_of(old, factors);
        BARRIER;
        if constexpr (NEW) load(SpanWeights<Weight>(weight, i), bytes[i % RING]);
        each<BLOCKS>([&](auto block) INLINED {
            if constexpr (NEW) multiply(x[block * spans + at], sums[i % RING][block]);
            if constexpr (block == 0) lay_out(i + LEAD);
            if constexpr (OLD) {
                const Sums(&found)[PARTS] = sums[(i - LAG) % RING][block];
                add<Weight, 0, block>(sum, found[0], x[block * spans + end], front, floor);
                if constexpr (PARTS == 2) add<Weight, 1, block>(sum, found[1], x[block * spans + end], back, floor);
            }
        });
        if constexpr (NEW) at = at + 1 == spans ? 0 : at + 1;
    }
};

// ROWS rows by some groups.
template <class Weight, int ROWS>
void stream(const Product& job, const Weight* weight, int64_t row, int64_t group, int64_t last) {
    using Own = Stream<Weight, ROWS>;
    Own own(job, weight, row, last - group);
    const int64_t count = own.count;
    alignas(64) float lines[ROWS][SIDE];
    __m512 sum[ROWS];  // separate from the memory of tiles, so that it stays in registers
    each<ROWS>([&](auto r) INLINED { sum[r] = _mm512_setzero_ps(); });
    for (int64_t i = 0; i < Own::LEAD; ++i) own.lay_out(i);
    for (int64_t i = 0; i < std::min<int64_t>(Own::LAG, count); ++i) own.template step<true, false>(sum, i);
    for (int64_t i = Own::LAG; i < count + Own::LAG; ++i) {
        if (i < count) own.template step<true, true>(sum, i);
        else own.template step<false, true>(sum, i);
        if (++own.end < own.spans) continue;
        each<ROWS>([&](auto r) INLINED { _mm512_store_ps(lines[r], sum[r]), sum[r] = _mm512_setzero_ps(); });
        hand_over(job, lines, row, std::min<int64_t>(ROWS, job.rows - row), group++);
        own.end = 0;
    }
}

// Up to MANY rows by tiles. The number of rows is rounded up, because each number instantiates a template.
template <class Weight, int ROWS = MANY>
void matrices(const Product& job, const Weight* weight, int64_t row, int64_t count, int64_t first, int64_t last) {
    constexpr int LESS = ROWS > MOST ? ROWS - 4 : ROWS - 1;
    if constexpr (ROWS > FEW + 1)
        if (count <= LESS) return matrices<Weight, LESS>(job, weight, row, count, first, last);
    stream<Weight, ROWS>(job, weight, row, first, last);
}

constexpr int PAIR = 1;  // no panels
template <class Weight>
int64_t rows_by_pair(const Product&, const Weight*, int64_t row, int64_t, int64_t) {
    return row;
}

#else

template <int>
struct Tiles {
    static constexpr bool ready = false;
    explicit Tiles(int64_t) {}
};
template <class Weight>
void matrices(const Product&, const Weight*, int64_t, int64_t, int64_t, int64_t) {}

#include "panels_avx512.hpp"

#endif

// Up to FEW rows, of one block, by one group.
template <class Weight, int ROWS = FEW>
void few(const Product& job, const Weight* weight, int64_t row, int64_t count, int64_t group) {
    if constexpr (ROWS > 1)
        if (count < ROWS) return few<Weight, ROWS - 1>(job, weight, row, count, group);
    vectors<Weight, ROWS>(job, weight, row, group);
}

// Rows by groups of outputs: most of the rows by tiles or panels, the last few by vector instructions.
template <class Weight>
void rows_by(const Product& job, const Weight* weight, bool tiles, int64_t row, int64_t end, int64_t first, int64_t last) {
    for (int64_t left; tiles && (left = end - row) > FEW;) {
        int64_t count = std::min<int64_t>(left, MANY);
        if (count > HELD && count % HELD && count % HELD <= FEW) count = count / HELD * HELD;
        matrices(job, weight, row, count, first, last);
        row += count;
    }
    for (int64_t group = first, start = row; group < last && row < end; ++group, weight += blocks_of<Weight>(job)) {
        if ((group - first) % PAIR == 0) start = group + PAIR <= last ? rows_by_pair(job, weight, row, end, group) : row;
        for (int64_t r = start, next; r < end; r = next) {
            next = std::min({r + FEW, end, (r / HELD + 1) * HELD});
            few(job, weight, r, next - r, group);
        }
    }
}

template <class Weight>
void integers(const Product& job, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const Tiles<Weight::PARTS> tiles(bottom - top);
    const int64_t blocks = blocks_of<Weight>(job), line = blocks * sizeof(Weight);
    const bool many = tiles.ready && bottom - top > MANY;  // then some groups' weights stay in cache for all rows
    const int64_t some = many ? std::max<int64_t>(1, NEAR / line) : last - first;
    for (int64_t group = first; group < last; group += some) {
        const Weight* weight = static_cast<const Weight*>(job.weight) + group * blocks;
        rows_by(job, weight, tiles.ready, top, bottom, group, std::min(last, group + some));
    }
}
