// The layers of a decoder over packed tokens, in float32, as one call: norm, query, key and value, rotation, attention over
// the cache, output, norm, gate and up, activation, down; in the end norm and logits where they are asked for.
//
// Between the products of a small model there is so little to do that calling a library for each thing takes longer than
// doing it. Here a team of threads walks through the layers together and waits only where one needs what all have done.
// Every number is computed from its own token, by one order of operations: products and attention are those of
// linear.cpp and attention.hpp, the rest is written below, token by token.

#include <sched.h>

#include <deque>

#include "attention.hpp"
#include "linear.hpp"
#include "noise.hpp"

using attention::Floats;
using attention::load;
using attention::store;
using linear::Matrix;

static void (*multiply)(linear::Job*);  // `slipstream_work` of linear.cpp

extern "C" void slipstream_products(void (*work)(linear::Job*)) { multiply = work; }

namespace {

constexpr int64_t SLICE = 256;  // columns of an activation that are done at a time
constexpr int SPINS = 2000;     // looks at the others' progress before the core is offered to someone else

// What is known of one layer, and of the model; laid out as in cpu_decoder.py.
struct Layer {
    const Matrix *query, *key, *value, *output, *gate, *up, *down;
    const float *before, *between;  // weights of the norms before attention and before the products that follow it
    const float* beside;            // and of what is read beside the hidden state; null: nothing is
    const float *query_norm, *key_norm;  // and of each head's query and key; null: these are not normed
};

struct Net {
    const Layer* layers;
    const float* norm;
    const Matrix* head;
    int64_t hidden, inner, heads, kv_heads, dim;
    float epsilon, scale;
};

// One pass: what it reads and writes; by layer where there are two stars.
struct Call {
    float* hidden;           // [tokens, hidden] what the first layer reads; in the end what the last one gave
    const float* beside;     // [tokens, hidden]
    const float *cos, *sin;  // [tokens, turned]
    float *const *keys, *const *values;  // [rows, kv_heads, places, dim]
    const uint8_t* const* seen;          // [tokens, used], or null
    float* const* watched;               // [tokens, hidden], or null
    const int64_t *row, *place;          // [tokens] where each token's keys and values go
    const int64_t* kept;                 // [slots] tokens whose logits are wanted
    float* logits;                       // [slots, vocabulary]
    int64_t tokens, slots, turned, places, used, first, last;
    int64_t brief;  // whether keys and values of the first layer are all that is wanted
};

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// Threads that go on together.
struct Team {
    std::atomic<int> arrived{0}, round{0};

    void wait(int threads) {
        const int now = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round.load(std::memory_order_acquire) == now; ++spins)
            if (spins > SPINS) sched_yield();
    }
};

// Pieces of work that whoever is free takes.
struct Heap {
    std::atomic<int64_t> next{0};

    template <class F>
    void share(int64_t pieces, F f) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) f(i);
    }
};

// Into how many pieces the columns of arranged rows are cut: one row is not worth it.
int64_t cuts(const linear::Job& reader) { return reader.rows > 1 ? (reader.in + SLICE - 1) / SLICE : 1; }

int64_t blocks(const linear::Job& reader) { return (reader.rows + linear::MOST - 1) / linear::MOST; }

// A piece of arranged rows: one block by some columns, since threads that write the same lines of memory wait for each other.
struct Piece {
    int64_t row, start, end;

    Piece(const linear::Job& reader, int64_t index) {
        const int64_t slices = cuts(reader);
        row = index / slices * linear::MOST, start = index % slices * SLICE;
        end = slices == 1 ? reader.in : std::min(reader.in, start + SLICE);
    }
    static int64_t count(const linear::Job& reader) { return blocks(reader) * cuts(reader); }
};

// All work of one layer, cut before the team sets out.
struct Stage {
    linear::Job query, key, value, output, gate, up, down;
    attention::Job attention;
    Heap before, turn, arrange, between, activate, watch;
};

struct Pass {
    const Net& net;
    const Call& call;
    int (*count)();
    float *normed, *arranged, *query, *key, *value, *seen, *gate, *up, *inner;
    std::deque<Stage>& stages;
    linear::Job head;
    Heap last;
    Team team;
};

float squares(const float* x, int64_t n) {
    Floats sum = {};
    int64_t k = 0;
    for (; k + attention::LANES <= n; k += attention::LANES) sum += load(x + k) * load(x + k);
    float all = attention::total(sum);
    for (; k < n; ++k) all += x[k] * x[k];
    return all;
}

// Columns `first` to `last` of a normalised row.
void normalise(const float* x, const float* weight, float* y, int64_t n, float epsilon, int64_t first, int64_t last) {
    const float by = 1.0f / std::sqrt(squares(x, n) / static_cast<float>(n) + epsilon);
    int64_t k = first;
    for (; k + attention::LANES <= last; k += attention::LANES) store(y + k, load(weight + k) * (load(x + k) * by));
    for (; k < last; ++k) y[k] = weight[k] * (x[k] * by);
}

// Some tokens, normalised and laid as products read them, what is beside them first. `kept` says which tokens, null all.
void present(Pass& pass, const linear::Job& reader, const float* weight, int64_t index, const int64_t* kept = nullptr,
             const float* beside = nullptr) {
    const Piece piece(reader, index);
    const int64_t n = pass.net.hidden, before = beside ? n : 0;  // columns of what is beside
    for (int64_t t = piece.row; t < std::min(reader.rows, piece.row + linear::MOST); ++t) {
        float* to = pass.normed + t * reader.in;
        if (piece.start < before)
            normalise(pass.call.beside + t * n, beside, to, n, pass.net.epsilon, piece.start, std::min(piece.end, n));
        if (piece.end > before)
            normalise(pass.call.hidden + (kept ? kept[t] : t) * n, weight, to + before, n, pass.net.epsilon,
                      std::max(piece.start, before) - before, piece.end - before);
    }
    linear::arrange(reader.kind, pass.normed, reader.x, reader.rows, reader.in, piece.row, piece.start, piece.end);
}

// What some tokens have seen, laid as the next product reads it.
void gather(Pass& pass, const linear::Job& reader, int64_t index) {
    const Piece piece(reader, index);
    linear::arrange(reader.kind, pass.seen, reader.x, reader.rows, reader.in, piece.row, piece.start, piece.end);
}

// Turn the first `turned` numbers of a head by the token's angles.
void turn(const float* cos, const float* sin, float* x, int64_t turned) {
    const int64_t half = turned / 2;
    int64_t i = 0;
    for (; i + attention::LANES <= half; i += attention::LANES) {
        const Floats a = load(x + i), b = load(x + half + i);
        store(x + i, a * load(cos + i) - b * load(sin + i));
        store(x + half + i, b * load(cos + half + i) + a * load(sin + half + i));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

// Queries and keys of one token turn; keys and values go to their place in the cache.
void settle(Pass& pass, int64_t layer, int64_t token) {
    const Net& net = pass.net;
    const Call& call = pass.call;
    const Layer& own = net.layers[layer];
    const float *cos = call.cos + token * call.turned, *sin = call.sin + token * call.turned;
    const int64_t heads = call.brief ? 0 : net.heads;
    for (int64_t h = 0; h < heads; ++h) {
        float* query = pass.query + (token * net.heads + h) * net.dim;
        if (own.query_norm) normalise(query, own.query_norm, query, net.dim, net.epsilon, 0, net.dim);
        turn(cos, sin, query, call.turned);
    }
    for (int64_t h = 0; h < net.kv_heads; ++h) {
        const int64_t from = (token * net.kv_heads + h) * net.dim;
        const int64_t to = ((call.row[token] * net.kv_heads + h) * call.places + call.place[token]) * net.dim;
        if (own.key_norm) normalise(pass.key + from, own.key_norm, pass.key + from, net.dim, net.epsilon, 0, net.dim);
        turn(cos, sin, pass.key + from, call.turned);
        std::memcpy(call.keys[layer] + to, pass.key + from, net.dim * sizeof(float));
        std::memcpy(call.values[layer] + to, pass.value + from, net.dim * sizeof(float));
    }
}

// x / (1 + e^-x) by powers of e below 1 alone.
Floats silu(Floats x) {
    const Floats zero = {}, one = zero + 1.0f;
    const attention::Words below = x < zero;
    const Floats power = attention::exponential(attention::larger(x, zero - x) * -1.0f);
    const Floats top = (Floats)(((attention::Words)power & below) | ((attention::Words)one & ~below));
    return x * top / (one + power);
}

// silu(gate) * up for some columns of one block of tokens, laid as the next product reads them.
void activate(Pass& pass, const linear::Job& reader, int64_t block, int64_t slice) {
    const int64_t n = pass.net.inner, first = block * linear::MOST, last = std::min(pass.call.tokens, first + linear::MOST);
    const int64_t start = slice * SLICE, end = std::min(n, start + SLICE);
    for (int64_t t = first; t < last; ++t) {
        float* gate = pass.gate + t * n;
        const float* up = pass.up + t * n;
        int64_t k = start;
        for (; k + attention::LANES <= end; k += attention::LANES) store(gate + k, silu(load(gate + k)) * load(up + k));
        if (k == end) continue;
        Floats a = {}, b = {};
        std::memcpy(&a, gate + k, (end - k) * sizeof(float));
        std::memcpy(&b, up + k, (end - k) * sizeof(float));
        a = silu(a) * b;
        std::memcpy(gate + k, &a, (end - k) * sizeof(float));
    }
    linear::arrange(reader.kind, pass.gate, reader.x, reader.rows, n, first, start, end);
}

void layer(Pass& pass, int64_t index, int threads) {
    Stage& stage = pass.stages[index - pass.call.first];
    const Layer& own = pass.net.layers[index];
    const int64_t tokens = pass.call.tokens, slices = (pass.net.inner + SLICE - 1) / SLICE;
    stage.before.share(Piece::count(stage.query), [&](int64_t i) {
        present(pass, stage.query, own.before, i, nullptr, own.beside);
    });
    pass.team.wait(threads);
    if (!pass.call.brief) multiply(&stage.query);
    multiply(&stage.key);
    multiply(&stage.value);
    pass.team.wait(threads);
    stage.turn.share(tokens, [&](int64_t i) { settle(pass, index, i); });
    if (pass.call.brief) return;
    pass.team.wait(threads);
    attention::work(&stage.attention);
    pass.team.wait(threads);
    stage.arrange.share(Piece::count(stage.output), [&](int64_t i) { gather(pass, stage.output, i); });
    pass.team.wait(threads);
    multiply(&stage.output);
    pass.team.wait(threads);
    stage.between.share(Piece::count(stage.gate), [&](int64_t i) { present(pass, stage.gate, own.between, i); });
    pass.team.wait(threads);
    multiply(&stage.gate);
    multiply(&stage.up);
    pass.team.wait(threads);
    stage.activate.share(blocks(stage.down) * slices, [&](int64_t i) {
        activate(pass, stage.down, i / slices, i % slices);
    });
    pass.team.wait(threads);
    multiply(&stage.down);
    pass.team.wait(threads);
    if (float* to = pass.call.watched[index])
        stage.watch.share(tokens, [&](int64_t t) {
            std::memcpy(to + t * pass.net.hidden, pass.call.hidden + t * pass.net.hidden, pass.net.hidden * sizeof(float));
        });
}

void perform(void* data) {
    Pass& pass = *static_cast<Pass*>(data);
    const int threads = pass.count();
    for (int64_t i = pass.call.first; i < pass.call.last; ++i) layer(pass, i, threads);
    const int64_t slots = pass.call.slots;
    if (!slots) return;
    pass.last.share(Piece::count(pass.head), [&](int64_t i) { present(pass, pass.head, pass.net.norm, i, pass.call.kept); });
    pass.team.wait(threads);
    multiply(&pass.head);
}

void cut(Pass& pass, Stage& stage, int64_t index, const std::vector<int64_t>& start, unsigned threads) {
    const Net& net = pass.net;
    const Call& call = pass.call;
    const Layer& own = net.layers[index];
    const auto product = [&](linear::Job& job, const Matrix* matrix, float* x, float* y, bool onto = false) {
        linear::prepare(job, *matrix, x, x, y, call.tokens, threads, onto);
    };
    product(stage.query, own.query, pass.arranged, pass.query);
    product(stage.key, own.key, pass.arranged, pass.key);
    product(stage.value, own.value, pass.arranged, pass.value);
    product(stage.output, own.output, pass.arranged, call.hidden, true);
    product(stage.gate, own.gate, pass.arranged, pass.gate);
    product(stage.up, own.up, pass.arranged, pass.up);
    product(stage.down, own.down, pass.inner, call.hidden, true);
    attention::Job& job = stage.attention;
    job.query = pass.query, job.keys = call.keys[index], job.values = call.values[index], job.seen = call.seen[index];
    job.row = call.row, job.out = pass.seen, job.tokens = call.tokens, job.heads = net.heads, job.kv_heads = net.kv_heads;
    job.dim = job.dim_v = net.dim, job.places = call.places, job.used = call.used, job.scale = net.scale, job.cap = 0;
    job.threads = threads, job.start = start.data(), job.runs = static_cast<int64_t>(start.size()) - 1;
    job.next = 0;
    for (Heap* heap : {&stage.before, &stage.turn, &stage.arrange, &stage.between, &stage.activate, &stage.watch}) heap->next = 0;
}

// What a thread keeps from call to call.
struct Desk {
    linear::Scratch scratch;
    std::deque<Stage> stages;
    std::vector<int64_t> start;
};

Pass seat(const Net& net, const Call& call, int (*count)(), unsigned threads, Desk& desk) {
    const int64_t n = std::max(call.tokens, call.slots), wide = std::max(2 * net.hidden, net.heads * net.dim);
    const int64_t sizes[] = {2 * n * net.hidden, linear::room(n, wide), n * net.heads * net.dim, n * net.kv_heads * net.dim,
                             n * net.kv_heads * net.dim, n * net.heads * net.dim, n * net.inner, n * net.inner,
                             linear::room(n, net.inner)};
    int64_t offset[10] = {};
    for (int i = 0; i < 9; ++i) offset[i + 1] = offset[i] + (sizes[i] + 15) / 16 * 16;
    float* data = desk.scratch.of(offset[9]);
    attention::runs(call.row, call.tokens, desk.start);
    while (static_cast<int64_t>(desk.stages.size()) < call.last - call.first) desk.stages.emplace_back();
    return Pass{net, call, threads > 1 ? count : [] { return 1; }, data, data + offset[1], data + offset[2], data + offset[3],
                data + offset[4], data + offset[5], data + offset[6], data + offset[7], data + offset[8], desk.stages, {}, {}, {}};
}

// Cut the work of a pass; nobody may be at it.
void cut(Pass& pass, const std::vector<int64_t>& start, unsigned threads) {
    const Call& call = pass.call;
    for (int64_t i = call.first; i < call.last; ++i) cut(pass, pass.stages[i - call.first], i, start, threads);
    if (call.slots) linear::prepare(pass.head, *pass.net.head, pass.arranged, pass.arranged, call.logits, call.slots, threads);
    pass.last.next = 0;
}

void run(Parallel parallel, unsigned threads, void (*function)(void*), void* data) {
    if (threads > 1) parallel(function, data, threads, 0);
    else function(data);
}

#include "draft.hpp"

}  // namespace

extern "C" void slipstream_decode(const Net* net, const Call* call, unsigned threads, Parallel parallel, int (*count)()) {
    static thread_local Desk desk;
    Pass pass = seat(*net, *call, count, threads, desk);
    cut(pass, desk.start, threads);
    run(parallel, threads, perform, &pass);
}

extern "C" void slipstream_draft(const Net* net, const Call* given, Grove* grove, unsigned threads, Parallel parallel,
                                 int (*count)()) {
    static thread_local Desk desk;
    static thread_local Wood wood;
    Call call = *given;
    call.tokens = call.slots = clear(wood, *grove, *net, call);
    call.beside = wood.beside.data(), call.cos = wood.cos.data(), call.sin = wood.sin.data(), call.logits = wood.logits.data();
    call.row = wood.row.data(), call.place = wood.place.data(), call.kept = wood.kept.data(), call.seen = wood.masks.data();
    Pass pass = seat(*net, call, count, threads, desk);
    const int64_t widest = *std::max_element(grove->width, grove->width + grove->rows);
    Growth own{pass, call, *grove, wood, threads, widest, net->head->out, grove->logits};
    run(parallel, threads, grow, &own);
}
