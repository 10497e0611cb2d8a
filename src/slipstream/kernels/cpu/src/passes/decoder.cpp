// The layers of a decoder over packed tokens, in float32, as one call: norm, query, key and value, rotation, attention over
// the cache, output, norm, gate and up, activation, down; then the final norm and the logits that are asked for.
//
// In a small model, calling a library for every operation takes longer than the operations. Here a team of threads runs all
// layers in one call, with a barrier where a thread needs the results of the others. Every number is computed from its own
// token in one order of operations: products and attention are those of linear.cpp and attention.hpp, and the rest below
// works token by token.

#include "decoder.hpp"

#include <deque>

#include "../products/linear.hpp"
#include "attention.hpp"

using attention::Floats;
using attention::load;
using attention::store;
using linear::Matrix;

static linear::Compute compute;  // `slipstream_compute` of linear.cpp

extern "C" void slipstream_products(linear::Compute given) { compute = given; }

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

    // The products that a pass runs, in order.
    template <class F>
    void each(const Layer& own, bool keys_only, F f) {
        if (own.query && !keys_only) f(query);
        if (own.query) f(key), f(value);
        if (own.query && !keys_only) f(output);
        if (own.gate && !keys_only) f(gate), f(up), f(down);
    }
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
    int64_t own_normed, own_packed;  // how far each thread's copies lie apart when there is one token
    linear::Job head;
    WorkQueue final_norm;
    Barrier barrier;
    std::atomic<int64_t> joined{0};

    // With one token, every thread normalises and packs it for itself, which takes less time than waiting for another.
    // Keys alone are not done so: no barrier would keep a thread from the next layer's keys.
    bool single() const { return args.tokens == 1 && args.slots <= 1 && !args.keys_only; }
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
void normalise_rows(Pass& pass, const linear::Job& reader, const float* weight, int64_t index, int64_t thread,
                    const int64_t* scored = nullptr, const float* second_norm = nullptr) {
    const Piece piece(reader, index);
    float *normed = pass.normed + (reader.own_x ? thread * pass.own_normed : 0), *packed = reader.x + thread * reader.own_x;
    const int64_t n = pass.net.hidden, before = second_norm ? n : 0;  // columns of the second input
    for (int64_t t = piece.row; t < std::min(reader.rows, piece.row + linear::MOST); ++t) {
        float* to = normed + t * reader.in;
        if (piece.start < before)
            normalise(pass.args.second + t * n, second_norm, to, n, pass.net.epsilon, piece.start, std::min(piece.end, n));
        if (piece.end > before)
            normalise(pass.args.hidden + (scored ? scored[t] : t) * n, weight, to + before, n, pass.net.epsilon,
                      std::max(piece.start, before) - before, piece.end - before);
    }
    linear::arrange(reader.kind, normed, packed, reader.rows, reader.in, piece.row, piece.start, piece.end);
}

// Packs what attention gave for some tokens as the next product reads it.
void pack_attention(Pass& pass, const linear::Job& reader, int64_t index, int64_t thread) {
    const Piece piece(reader, index);
    float* packed = reader.x + thread * reader.own_x;
    linear::arrange(reader.kind, pass.attended, packed, reader.rows, reader.in, piece.row, piece.start, piece.end);
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
void activate(Pass& pass, const linear::Job& reader, int64_t block, int64_t start, int64_t end) {
    const int64_t n = pass.net.inner, first = block * linear::MOST, last = std::min(pass.args.tokens, first + linear::MOST);
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

// Runs f(i) for all pieces of rows that a product reads. With one token every thread does so in its own memory.
template <class F>
void prepare_rows(Pass& pass, WorkQueue& queue, const linear::Job& reader, int threads, F f) {
    if (reader.own_x) return f(0);
    queue.share(Piece::count(reader), f);
    pass.barrier.wait(threads);
}

// Adds what attention gives to the hidden states.
void run_attention(Pass& pass, LayerWork& work, int64_t index, int threads, int64_t thread) {
    const Layer& own = pass.net.layers[index];
    prepare_rows(pass, work.attention_norm, work.query, threads, [&](int64_t i) {
        normalise_rows(pass, work.query, own.attention_norm, i, thread, nullptr, own.second_norm);
    });
    if (!pass.args.keys_only) linear::run_product(work.query, thread, compute);
    linear::run_product(work.key, thread, compute);
    linear::run_product(work.value, thread, compute);
    pass.barrier.wait(threads);
    work.rotate.share(pass.args.tokens, [&](int64_t i) { store_keys(pass, index, i); });
    if (pass.args.keys_only) return;  // the next layer overwrites keys and values only after its first barrier
    pass.barrier.wait(threads);
    attention::work(&work.attention);
    pass.barrier.wait(threads);
    prepare_rows(pass, work.pack, work.output, threads, [&](int64_t i) { pack_attention(pass, work.output, i, thread); });
    linear::run_product(work.output, thread, compute);
    pass.barrier.wait(threads);
}

// Whether a thread can activate what it computed: whole spans of the same columns of gate and up.
bool is_fused(const linear::Job& gate, const linear::Job& up) {
    const bool integers = gate.kind >= linear::FOUR, both = integers == (up.kind >= linear::FOUR);
    const bool same = both && gate.unit == up.unit && gate.chunks == up.chunks;
    return gate.own_x && linear::has_claims(gate) && same && gate.unit * linear::group_outputs(gate) % linear::SPAN == 0;
}

// Gate, up and activation of one token, chunk by chunk.
void run_gated(Pass& pass, LayerWork& work, int64_t thread) {
    linear::Job &gate = work.gate, &up = work.up;
    const int64_t size = linear::group_outputs(gate);
    linear::share_chunks(gate, thread, [&](int64_t i, bool more) {
        compute(&gate, i, thread, linear::weights_at(up, i));
        compute(&up, i, thread, more ? linear::weights_at(gate, i + 1) : linear::own_weights(up.then, thread));
        const int64_t end = std::min(gate.out, linear::chunk_start(gate, i + 1) * size);
        activate(pass, work.down, 0, linear::chunk_start(gate, i) * size, end);
    });
}

// Adds what the MLP gives to the hidden states.
void run_mlp(Pass& pass, LayerWork& work, const Layer& own, int threads, int64_t thread) {
    const int64_t slices = (pass.net.inner + SLICE - 1) / SLICE;
    prepare_rows(pass, work.mlp_norm, work.gate, threads, [&](int64_t i) {
        normalise_rows(pass, work.gate, own.mlp_norm, i, thread);
    });
    if (is_fused(work.gate, work.up)) {
        run_gated(pass, work, thread);
    } else {
        linear::run_product(work.gate, thread, compute);
        linear::run_product(work.up, thread, compute);
        pass.barrier.wait(threads);
        work.activate.share(blocks(work.down) * slices, [&](int64_t i) {
            const int64_t start = i % slices * SLICE;
            activate(pass, work.down, i / slices, start, std::min(pass.net.inner, start + SLICE));
        });
    }
    pass.barrier.wait(threads);
    linear::run_product(work.down, thread, compute);
    pass.barrier.wait(threads);
}

// A block without weights is skipped.
void run_layer(Pass& pass, int64_t index, int threads, int64_t thread) {
    LayerWork& work = pass.scratch.layers[index - pass.args.first];
    const Layer& own = pass.net.layers[index];
    if (own.query) run_attention(pass, work, index, threads, thread);
    if (pass.args.keys_only) return;
    if (own.gate) run_mlp(pass, work, own, threads, thread);
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
        if (!matrix) return;
        linear::prepare(job, *matrix, x, x, y, args.tokens, pass.threads, onto);
        if (x == pass.packed && pass.single()) job.own_x = pass.own_packed;
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
    const int64_t n = std::max(args.tokens, args.slots), wide = std::max(2 * net.hidden, net.heads * net.dim), team = threads;
    const int64_t line = (2 * net.hidden + 15) / 16 * 16, block = linear::room(1, wide);  // of one token
    const int64_t sizes[] = {std::max(n, team) * line, std::max(linear::room(n, wide), team * block), n * net.heads * net.dim, n * net.kv_heads * net.dim,
                             n * net.kv_heads * net.dim, n * net.heads * net.dim, n * net.inner, n * net.inner,
                             linear::room(n, net.inner)};
    int64_t offset[10] = {};
    for (int i = 0; i < 9; ++i) offset[i + 1] = offset[i] + (sizes[i] + 15) / 16 * 16;
    float* data = scratch.floats.of(offset[9]);
    while (static_cast<int64_t>(scratch.layers.size()) < args.last - args.first) scratch.layers.emplace_back();
    return Pass{net, args, threads, team_size_of(threads, team_size), scratch, data, data + offset[1], data + offset[2],
                data + offset[3], data + offset[4], data + offset[5], data + offset[6], data + offset[7], data + offset[8],
                line, block, {}, {}, {}, {}};
}

}  // namespace

void PassDeleter::operator()(Pass* pass) const { delete pass; }

std::unique_ptr<Pass, PassDeleter> make_pass(const Network& net, const PassArgs& args, unsigned threads, TeamSize team_size) {
    return std::unique_ptr<Pass, PassDeleter>(new Pass(new_pass(net, args, threads, team_size)));
}

void schedule(Pass& pass) {
    const PassArgs& args = pass.args;
    attention::runs(args.row, args.tokens, pass.scratch.start);
    linear::Job* before = nullptr;
    const auto follow = [&](linear::Job& job) {
        if (before) before->then = &job;
        before = &job;
    };
    for (int64_t i = args.first; i < args.last; ++i) {
        LayerWork& work = pass.scratch.layers[i - args.first];
        schedule_layer(pass, work, i);
        work.each(pass.net.layers[i], args.keys_only, follow);
    }
    if (args.slots) {
        linear::prepare(pass.head, *pass.net.head, pass.packed, pass.packed, args.logits, args.slots, pass.threads);
        if (pass.single()) pass.head.own_x = pass.own_packed;
        follow(pass.head);
    }
    pass.final_norm.next = 0;
}

void run_layers(Pass& pass) {
    const int threads = pass.team_size();
    const int64_t thread = pass.joined.fetch_add(1, std::memory_order_relaxed) % threads;
    for (int64_t i = pass.args.first; i < pass.args.last; ++i) run_layer(pass, i, threads, thread);
    if (!pass.args.slots) return;
    prepare_rows(pass, pass.final_norm, pass.head, threads, [&](int64_t i) {
        normalise_rows(pass, pass.head, pass.net.norm, i, thread, pass.args.scored);
    });
    linear::run_product(pass.head, thread, compute);
}

struct RowProduct {
    linear::Job job;
    std::atomic<int64_t> joined{0};
};

void RowProductDeleter::operator()(RowProduct* product) const { delete product; }

std::unique_ptr<RowProduct, RowProductDeleter> make_row_product(const Matrix& matrix, const float* x, float* y, int64_t rows,
                                                                unsigned threads) {
    static thread_local linear::Scratch scratch;
    float* arranged = scratch.of(linear::room(rows, matrix.in));
    std::unique_ptr<RowProduct, RowProductDeleter> product(new RowProduct);
    linear::Job& job = product->job;
    linear::prepare(job, matrix, x, arranged, y, rows, threads);
    for (int64_t row = 0; row < rows; row += linear::MOST)
        linear::arrange(job.kind, x, arranged, rows, matrix.in, row);
    return product;
}

void run_row_product(RowProduct& product) {
    const int64_t thread = product.joined.fetch_add(1, std::memory_order_relaxed) % product.job.threads;
    linear::run_product(product.job, thread, compute);
}

}  // namespace decoder

extern "C" void slipstream_decode(const decoder::Network* net, const decoder::PassArgs* args, unsigned threads,
                                  decoder::Parallel parallel, decoder::TeamSize team_size) {
    decoder::Pass pass = decoder::new_pass(*net, *args, threads, team_size);
    decoder::schedule(pass);
    decoder::run_team(parallel, threads, [](void* data) { decoder::run_layers(*static_cast<decoder::Pass*>(data)); }, &pass);
}
