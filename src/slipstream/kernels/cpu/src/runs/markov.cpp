// Chains of a block drafter with a Markov head, all rows side by side, in one call. The reference that defines the results is
// `drafters/dflash/markov.py` with `drafters/levels/grow.py`.
//
// The stack has given the logits of all slots of a block, and what the head reads of each slot. Level by level, the head adds
// a correction by the token before: columns · silu(previous · norm(embedding) + slot). Then the next token is ranked or
// sampled.

#include <algorithm>
#include <cmath>
#include <vector>

#include "../laws/ranking.hpp"
#include "../passes/decoder.hpp"
#include "../products/linear.hpp"

namespace {

// What is drafted for each row, and the results; laid out as `_MarkovArgs` in markov.py.
struct MarkovArgs {
    const linear::Matrix* columns;                // [vocabulary, width]
    linear::Compute compute;                      // `slipstream_compute` of linear.cpp
    const float *embedding, *norm, *previous;     // by token; [hidden]; [width, hidden]
    const float* outputs;                         // [rows, levels, vocabulary + width] of the stack
    const int64_t* ids;                           // [vocabulary] the token of each logit
    const int64_t *last, *depth;                  // [rows] the committed end, and the most tokens of the chain
    const int64_t *ends_from, *key, *ends;        // end tokens of all rows, and where each row's begin; [rows, levels] keys
    const double *floor, *temperature;            // [rows] drafting stops where the likeliest token is less probable
    const truncation::Truncation* limits;           // [rows] of what DRAWN samples from, or null
    int64_t *token, *count;                       // [rows, levels], [rows]
    float *prob, *law;                            // [rows, levels]; [rows, levels, vocabulary] if tokens are sampled
    int64_t rows, levels, hidden, mode;
    float epsilon;
};

// What a thread keeps from call to call.
struct MarkovScratch {
    std::vector<int64_t> active, index;  // rows whose chain goes on; [rows] the token that was ranked first
    std::vector<float> state, logits, prob, peak;
    linear::Scratch arranged;
};

struct MarkovRun {
    const MarkovArgs& args;
    MarkovScratch& scratch;
    unsigned threads;
    decoder::TeamSize team_size;
    int64_t level = 0;
    linear::Job job;
    decoder::WorkQueue rows_to_rank;
    decoder::Barrier barrier;
    std::atomic<int> arrived{0};

    int64_t vocab() const { return args.columns->out; }
    int64_t width() const { return args.columns->in; }
    int64_t line(int64_t r) const { return r * args.levels + level; }
    const float* slot(int64_t r) const { return args.outputs + line(r) * (vocab() + width()); }

    // What the head makes of a token and of a slot.
    void fill_state(int64_t token, const float* own, float* state) const {
        const float* e = args.embedding + token * args.hidden;
        static thread_local std::vector<float> normed;
        normed.resize(args.hidden);
        double squares = 0;
        for (int64_t k = 0; k < args.hidden; ++k) squares += e[k] * e[k];
        const float scale = 1 / std::sqrt(static_cast<float>(squares / args.hidden) + args.epsilon);
        for (int64_t k = 0; k < args.hidden; ++k) normed[k] = e[k] * scale * args.norm[k];
        for (int64_t n = 0; n < width(); n += 4) read_four(normed.data(), args.previous + n * args.hidden, state + n);
        for (int64_t n = 0; n < width(); ++n) {
            const float sum = own[n] + state[n];
            state[n] = sum / (1 + std::exp(-sum));
        }
    }

    // Four products at once, so that the processor need not wait for one sum.
    void read_four(const float* x, const float* weight, float* y) const {
        const int64_t size = args.hidden;
        vectors::Floats sums[4] = {};
        int64_t k = 0;
        for (; k + vectors::LANES <= size; k += vectors::LANES)
            for (int n = 0; n < 4; ++n) sums[n] += vectors::load(weight + n * size + k) * vectors::load(x + k);
        for (int n = 0; n < 4; ++n) y[n] = vectors::total(sums[n]);
        for (; k < size; ++k)
            for (int n = 0; n < 4; ++n) y[n] += weight[n * size + k] * x[k];
    }

    // Prepare the product of a level; no thread may be running one.
    void begin_level() {
        const int64_t n = scratch.active.size();
        scratch.logits.resize(n * vocab()), scratch.state.resize(n * width());
        for (int64_t i = 0; i < n; ++i) {
            const int64_t r = scratch.active[i], before = level ? args.token[line(r) - 1] : args.last[r];
            fill_state(before, slot(r) + vocab(), scratch.state.data() + i * width());
            std::memcpy(scratch.logits.data() + i * vocab(), slot(r), vocab() * sizeof(float));
        }
        const bool plain = n == 1 && args.columns->kind < linear::FOUR;  // needs no rearranging
        float* x = plain ? scratch.state.data() : scratch.arranged.of(linear::room(n, width()));
        linear::prepare(job, *args.columns, scratch.state.data(), x, scratch.logits.data(), n, threads, true);
        for (int64_t row = 0; !plain && row < n; row += linear::MOST)
            linear::arrange(job.kind, job.given, job.x, n, width(), row);
        rows_to_rank.next = 0;
    }

    void rank(int64_t i) {
        const int64_t r = scratch.active[i], at = line(r);
        const ranking::Slot own{scratch.logits.data() + i * vocab(), args.ids, vocab(),
                                static_cast<float>(args.temperature[r]), args.key[at], args.law + at * vocab(),
                                args.limits ? args.limits + r : nullptr};
        scratch.prob[r] = 0;
        scratch.peak[r] = ranking::rank(own, args.mode, 1, &scratch.prob[r], &scratch.index[r]);
    }

    bool ends(int64_t r, int64_t token) const {
        const int64_t *from = args.ends + args.ends_from[r], *to = args.ends + args.ends_from[r + 1];
        return std::find(from, to, token) != to;
    }

    // Write the tokens of a level, and keep the rows whose chain goes on.
    void end_level() {
        size_t kept = 0;
        for (const int64_t r : scratch.active) {
            if (scratch.peak[r] < args.floor[r] || !(scratch.prob[r] > 0)) continue;
            const int64_t token = args.ids[scratch.index[r]];
            args.token[line(r)] = token, args.prob[line(r)] = std::min(1.0f, scratch.prob[r]), ++args.count[r];
            if (level + 1 < args.depth[r] && !ends(r, token)) scratch.active[kept++] = r;
        }
        scratch.active.resize(kept);
        ++level;
    }
};

void run_chains(void* data) {
    MarkovRun& run = *static_cast<MarkovRun*>(data);
    const int thread = run.arrived.fetch_add(1);
    const bool leads = thread == 0;
    const int threads = run.team_size();
    while (true) {
        if (leads && !run.scratch.active.empty()) run.begin_level();
        run.barrier.wait(threads);
        if (run.scratch.active.empty()) break;
        linear::run_product(run.job, thread, run.args.compute);
        run.barrier.wait(threads);
        run.rows_to_rank.share(run.scratch.active.size(), [&](int64_t i) { run.rank(i); });
        run.barrier.wait(threads);
        if (leads) run.end_level();
    }
}

}  // namespace

extern "C" void slipstream_markov(const MarkovArgs* args, unsigned threads, decoder::Parallel parallel,
                                  decoder::TeamSize team_size) {
    static thread_local MarkovScratch scratch;
    scratch.active.clear();
    for (int64_t r = 0; r < args->rows; ++r) {
        args->count[r] = 0;
        if (args->depth[r] > 0) scratch.active.push_back(r);
    }
    scratch.index.resize(args->rows), scratch.prob.resize(args->rows), scratch.peak.resize(args->rows);
    MarkovRun run{*args, scratch, threads, decoder::team_size_of(threads, team_size)};
    decoder::run_team(parallel, threads, run_chains, &run);
}
