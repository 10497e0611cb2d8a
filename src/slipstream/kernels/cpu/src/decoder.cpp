// The layers of a decoder over packed tokens, in float32, as one call: norm, query, key and value, rotation, attention over
// the cache, output, norm, gate and up, activation, down; then the final norm and the logits that are asked for.
//
// In a small model, calling a library for every operation takes longer than the operations. Here a team of threads runs all
// layers in one call, with a barrier where a thread needs the results of the others. Every number is computed from its own
// token in one order of operations: products and attention are those of linear.cpp and attention.hpp, and the rest below
// works token by token.

#include "decoder.hpp"

#include <deque>

#include "attention.hpp"
#include "linear.hpp"

using attention::Floats;
using attention::load;
using attention::store;
using linear::Matrix;

static void (*multiply)(linear::Job*);  // `slipstream_work` of linear.cpp

extern "C" void slipstream_products(void (*work)(linear::Job*)) { multiply = work; }

namespace decoder {
namespace {

constexpr int64_t SLICE = 256;  // columns of an activation that are done at a time

// Into how many slices the columns of packed rows are divided: a single row is not divided.
int64_t slice_count(const linear::Job& reader) { return reader.rows > 1 ? (reader.in + SLICE - 1) / SLICE : 1; }

// Blocks of rows that are packed together.
int64_t blocks(const linear::Job& reader) { return (reader.rows + linear::MOST - 1) / linear::MOST; }

// A piece of packed rows: one block by some columns, so that no two threads write the same cache line.
struct Piece {
    int64_t row, start, end;

    Piece(const linear::Job& reader, int64_t index) {
        const int64_t slices = slice_count(reader);
        row = index / slices * linear::MOST, start = index % slices * SLICE;
        end = slices == 1 ? reader.in : std::min(reader.in, start + SLICE);
    }
    static int64_t count(const linear::Job& reader) { return blocks(reader) * slice_count(reader); }
};

// All work of one layer.
struct LayerWork {
    linear::Job query, key, value, output, gate, up, down;
    attention::Job attention;
    WorkQueue attention_norm, rotate, pack, mlp_norm, activate, copy;
};

// What a thread keeps from pass to pass.
struct PassScratch {
    linear::Scratch floats;
    std::deque<LayerWork> layers;
    std::vector<int64_t> start;  // of each run of tokens that attention works on together
};

}  // namespace

struct Pass {
    const Network& net;
    const PassArgs& args;
    unsigned threads;
    TeamSize team_size;
    PassScratch& scratch;
    float *normed, *packed, *query, *key, *value, *attended, *gate, *up, *inner;
    linear::Job head;
    WorkQueue final_norm;
    Barrier barrier;
};

namespace {

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

// Normalises some tokens and packs them as products read them, the second input first. `scored`: which tokens, null for all.
void normalise_rows(Pass& pass, const linear::Job& reader, const float* weight, int64_t index, const int64_t* scored = nullptr,
                    const float* second_norm = nullptr) {
    const Piece piece(reader, index);
    const int64_t n = pass.net.hidden, before = second_norm ? n : 0;  // columns of the second input
    for (int64_t t = piece.row; t < std::min(reader.rows, piece.row + linear::MOST); ++t) {
        float* to = pass.normed + t * reader.in;
        if (piece.start < before)
            normalise(pass.args.second + t * n, second_norm, to, n, pass.net.epsilon, piece.start, std::min(piece.end, n));
        if (piece.end > before)
            normalise(pass.args.hidden + (scored ? scored[t] : t) * n, weight, to + before, n, pass.net.epsilon,
                      std::max(piece.start, before) - before, piece.end - before);
    }
    linear::arrange(reader.kind, pass.normed, reader.x, reader.rows, reader.in, piece.row, piece.start, piece.end);
}

// Packs what attention gave for some tokens as the next product reads it.
void pack_attention(Pass& pass, const linear::Job& reader, int64_t index) {
    const Piece piece(reader, index);
    linear::arrange(reader.kind, pass.attended, reader.x, reader.rows, reader.in, piece.row, piece.start, piece.end);
}

// Rotary embedding: rotates the first `rotated` numbers of a head by the angles of the token's position.
void rotate(const float* cos, const float* sin, float* x, int64_t rotated) {
    const int64_t half = rotated / 2;
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

// Rotates the queries and keys of one token, and writes its keys and values into the cache.
void store_keys(Pass& pass, int64_t layer, int64_t token) {
    const Network& net = pass.net;
    const PassArgs& args = pass.args;
    const Layer& own = net.layers[layer];
    const float *cos = args.cos + token * args.rotated, *sin = args.sin + token * args.rotated;
    const int64_t heads = args.keys_only ? 0 : net.heads;
    for (int64_t h = 0; h < heads; ++h) {
        float* query = pass.query + (token * net.heads + h) * net.dim;
        if (own.query_norm) normalise(query, own.query_norm, query, net.dim, net.epsilon, 0, net.dim);
        rotate(cos, sin, query, args.rotated);
    }
    for (int64_t h = 0; h < net.kv_heads; ++h) {
        const int64_t from = (token * net.kv_heads + h) * net.dim;
        const int64_t to = (args.row[token] * args.row_step + h * args.head_step + args.place[token]) * net.dim;
        if (own.key_norm) normalise(pass.key + from, own.key_norm, pass.key + from, net.dim, net.epsilon, 0, net.dim);
        rotate(cos, sin, pass.key + from, args.rotated);
        std::memcpy(args.keys[layer] + to, pass.key + from, net.dim * sizeof(float));
        std::memcpy(args.values[layer] + to, pass.value + from, net.dim * sizeof(float));
    }
}

// x / (1 + e^-x), computed without exponentials above 1.
Floats silu(Floats x) {
    const Floats zero = {}, one = zero + 1.0f;
    const attention::Words below = x < zero;
    const Floats power = attention::exponential(attention::larger(x, zero - x) * -1.0f);
    const Floats top = (Floats)(((attention::Words)power & below) | ((attention::Words)one & ~below));
    return x * top / (one + power);
}

// silu(gate) * up for some columns of one block of tokens, packed as the next product reads them.
void activate(Pass& pass, const linear::Job& reader, int64_t block, int64_t slice) {
    const int64_t n = pass.net.inner, first = block * linear::MOST, last = std::min(pass.args.tokens, first + linear::MOST);
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

// Adds what attention gives to the hidden states.
void run_attention(Pass& pass, LayerWork& work, int64_t index, int threads) {
    const Layer& own = pass.net.layers[index];
    work.attention_norm.share(Piece::count(work.query), [&](int64_t i) {
        normalise_rows(pass, work.query, own.attention_norm, i, nullptr, own.second_norm);
    });
    pass.barrier.wait(threads);
    if (!pass.args.keys_only) multiply(&work.query);
    multiply(&work.key);
    multiply(&work.value);
    pass.barrier.wait(threads);
    work.rotate.share(pass.args.tokens, [&](int64_t i) { store_keys(pass, index, i); });
    if (pass.args.keys_only) return;  // the next layer overwrites keys and values only after its first barrier
    pass.barrier.wait(threads);
    attention::work(&work.attention);
    pass.barrier.wait(threads);
    work.pack.share(Piece::count(work.output), [&](int64_t i) { pack_attention(pass, work.output, i); });
    pass.barrier.wait(threads);
    multiply(&work.output);
    pass.barrier.wait(threads);
}

// Adds what the MLP gives to the hidden states.
void run_mlp(Pass& pass, LayerWork& work, const Layer& own, int threads) {
    const int64_t slices = (pass.net.inner + SLICE - 1) / SLICE;
    work.mlp_norm.share(Piece::count(work.gate), [&](int64_t i) { normalise_rows(pass, work.gate, own.mlp_norm, i); });
    pass.barrier.wait(threads);
    multiply(&work.gate);
    multiply(&work.up);
    pass.barrier.wait(threads);
    work.activate.share(blocks(work.down) * slices, [&](int64_t i) {
        activate(pass, work.down, i / slices, i % slices);
    });
    pass.barrier.wait(threads);
    multiply(&work.down);
    pass.barrier.wait(threads);
}

// A block without weights is skipped.
void run_layer(Pass& pass, int64_t index, int threads) {
    LayerWork& work = pass.scratch.layers[index - pass.args.first];
    const Layer& own = pass.net.layers[index];
    if (own.query) run_attention(pass, work, index, threads);
    if (pass.args.keys_only) return;
    if (own.gate) run_mlp(pass, work, own, threads);
    if (float* to = pass.args.features[index])
        work.copy.share(pass.args.tokens, [&](int64_t t) {
            std::memcpy(to + t * pass.net.hidden, pass.args.hidden + t * pass.net.hidden, pass.net.hidden * sizeof(float));
        });
}

// Divides the products and the attention of one layer among the threads.
void schedule_layer(Pass& pass, LayerWork& work, int64_t index) {
    const Network& net = pass.net;
    const PassArgs& args = pass.args;
    const Layer& own = net.layers[index];
    const auto product = [&](linear::Job& job, const Matrix* matrix, float* x, float* y, bool onto = false) {
        if (matrix) linear::prepare(job, *matrix, x, x, y, args.tokens, pass.threads, onto);
    };
    product(work.query, own.query, pass.packed, pass.query);
    product(work.key, own.key, pass.packed, pass.key);
    product(work.value, own.value, pass.packed, pass.value);
    product(work.output, own.output, pass.packed, args.hidden, true);
    product(work.gate, own.gate, pass.packed, pass.gate);
    product(work.up, own.up, pass.packed, pass.up);
    product(work.down, own.down, pass.inner, args.hidden, true);
    attention::Job& job = work.attention;
    job.query = pass.query, job.keys = args.keys[index], job.values = args.values[index], job.seen = args.mask[index];
    job.row = args.row, job.out = pass.attended, job.tokens = args.tokens, job.heads = net.heads, job.kv_heads = net.kv_heads;
    job.dim = job.dim_v = net.dim, job.row_step = args.row_step, job.head_step = args.head_step;
    job.used = args.used, job.scale = net.scale, job.cap = 0;
    job.threads = pass.threads, job.start = pass.scratch.start.data();
    job.runs = static_cast<int64_t>(pass.scratch.start.size()) - 1;
    job.next = 0;
    for (WorkQueue* queue : {&work.attention_norm, &work.rotate, &work.pack, &work.mlp_norm, &work.activate, &work.copy})
        queue->next = 0;
}

Pass new_pass(const Network& net, const PassArgs& args, unsigned threads, TeamSize team_size) {
    static thread_local PassScratch scratch;
    const int64_t n = std::max(args.tokens, args.slots), wide = std::max(2 * net.hidden, net.heads * net.dim);
    const int64_t sizes[] = {2 * n * net.hidden, linear::room(n, wide), n * net.heads * net.dim, n * net.kv_heads * net.dim,
                             n * net.kv_heads * net.dim, n * net.heads * net.dim, n * net.inner, n * net.inner,
                             linear::room(n, net.inner)};
    int64_t offset[10] = {};
    for (int i = 0; i < 9; ++i) offset[i + 1] = offset[i] + (sizes[i] + 15) / 16 * 16;
    float* data = scratch.floats.of(offset[9]);
    while (static_cast<int64_t>(scratch.layers.size()) < args.last - args.first) scratch.layers.emplace_back();
    return Pass{net, args, threads, team_size_of(threads, team_size), scratch, data, data + offset[1], data + offset[2],
                data + offset[3], data + offset[4], data + offset[5], data + offset[6], data + offset[7], data + offset[8],
                {}, {}, {}};
}

}  // namespace

void PassDeleter::operator()(Pass* pass) const { delete pass; }

std::unique_ptr<Pass, PassDeleter> make_pass(const Network& net, const PassArgs& args, unsigned threads, TeamSize team_size) {
    return std::unique_ptr<Pass, PassDeleter>(new Pass(new_pass(net, args, threads, team_size)));
}

void schedule(Pass& pass) {
    const PassArgs& args = pass.args;
    attention::runs(args.row, args.tokens, pass.scratch.start);
    for (int64_t i = args.first; i < args.last; ++i) schedule_layer(pass, pass.scratch.layers[i - args.first], i);
    if (args.slots)
        linear::prepare(pass.head, *pass.net.head, pass.packed, pass.packed, args.logits, args.slots, pass.threads);
    pass.final_norm.next = 0;
}

void run_layers(Pass& pass) {
    const int threads = pass.team_size();
    for (int64_t i = pass.args.first; i < pass.args.last; ++i) run_layer(pass, i, threads);
    if (!pass.args.slots) return;
    pass.final_norm.share(Piece::count(pass.head),
                          [&](int64_t i) { normalise_rows(pass, pass.head, pass.net.norm, i, pass.args.scored); });
    pass.barrier.wait(threads);
    multiply(&pass.head);
}

}  // namespace decoder

extern "C" void slipstream_decode(const decoder::Network* net, const decoder::PassArgs* args, unsigned threads,
                                  decoder::Parallel parallel, decoder::TeamSize team_size) {
    decoder::Pass pass = decoder::new_pass(*net, *args, threads, team_size);
    decoder::schedule(pass);
    decoder::run_team(parallel, threads, [](void* data) { decoder::run_layers(*static_cast<decoder::Pass*>(data)); }, &pass);
}
