// Plain greedy decoding of one row, several tokens in one call. Between two passes the next token is the largest logit, the
// first of equal ones. It ends after an end token, and before a token whose logits are not all finite.
//
// In Python, what lies between two passes of a small model takes a tenth of their time, because the weights that a pass reads
// evict everything else from the caches.

#include <algorithm>
#include <cmath>
#include <vector>

#include "decoder.hpp"
#include "ranking.hpp"

namespace {

using Unpack = int (*)(const linear::Matrix*, const int64_t*, int64_t, float*);  // `slipstream_unpack` of linear.cpp

// Laid out as `_ContinuationArgs` in continuation.py.
struct ContinuationArgs {
    const float* table;            // [vocabulary, hidden] the embedding, or null:
    const linear::Matrix* packed;  // the embedding in few bits
    Unpack unpack;
    const float *cos, *sin;  // by position
    float* const* features;  // by layer: [places, hidden] for its outputs, or null
    const int64_t* ends;     // end tokens
    int64_t* token;          // [most + 1] the last committed token, which receives those that follow
    int64_t end_count, row, place, most, count;  // count: how many followed
};

// What a thread keeps from call to call.
struct ContinuationScratch {
    std::vector<float> hidden, logits;
    std::vector<float*> features;
    std::vector<const uint8_t*> mask;
};

struct Leader {
    float logit;
    int64_t token;
    bool finite;
};

// The largest of some logits.
Leader leader(const float* logits, int64_t from, int64_t to) {
    using vectors::Floats;
    Floats sum = {};  // of zeros, unless a number is not finite
    int64_t i = from;
    for (; i + vectors::LANES <= to; i += vectors::LANES) {
        const Floats line = vectors::load(logits + i);
        sum += line - line;
    }
    float rest = vectors::total(sum);
    for (; i < to; ++i) rest += logits[i] - logits[i];
    Leader best{0, 0, rest == 0};
    best.finite = best.finite && ranking::largest(logits + from, to - from, 1, &best.logit, &best.token) == 1;
    best.token += from;
    return best;
}

struct ContinuationRun {
    decoder::Pass& pass;
    decoder::PassArgs& pass_args;
    const decoder::Network& net;
    ContinuationArgs& args;
    ContinuationScratch& scratch;
    int64_t& place;  // of the next token
    decoder::TeamSize team_size;
    std::vector<Leader> leaders;  // of each thread's part of the logits
    bool unfinished = true;
    decoder::Barrier barrier;
    std::atomic<int> arrived{0};

    // Make the last token the one of the next pass; no thread may be running the pass.
    void prepare() {
        const int64_t hidden = net.hidden, rotated = pass_args.rotated;
        place = args.place + args.count;
        const int64_t* token = args.token + args.count;
        if (args.table) std::memcpy(scratch.hidden.data(), args.table + *token * hidden, hidden * sizeof(float));
        else args.unpack(args.packed, token, 1, scratch.hidden.data());
        for (int64_t i = 0; i < pass_args.last; ++i)
            scratch.features[i] = args.features[i] ? args.features[i] + (args.row + place) * hidden : nullptr;
        pass_args.cos = args.cos + place * rotated, pass_args.sin = args.sin + place * rotated;
        pass_args.used = place + 1;
        decoder::schedule(pass);
    }

    // Take the next token from the logits.
    void choose() {
        Leader best = leaders[0];
        for (const Leader& other : leaders) {
            best.finite = best.finite && other.finite;
            if (other.logit > best.logit) best.logit = other.logit, best.token = other.token;
        }
        unfinished = best.finite;
        if (!unfinished) return;
        args.token[++args.count] = best.token;
        const int64_t* end = args.ends + args.end_count;
        unfinished = args.count < args.most && std::find(args.ends, end, best.token) == end;
    }
};

void run_continuation(void* data) {
    ContinuationRun& run = *static_cast<ContinuationRun*>(data);
    const int number = run.arrived.fetch_add(1), threads = run.team_size();
    const int64_t vocab = run.net.head->out;
    while (true) {
        if (number == 0) run.leaders.resize(threads), run.prepare();
        run.barrier.wait(threads);
        decoder::run_layers(run.pass);
        run.barrier.wait(threads);
        run.leaders[number] = leader(run.pass_args.logits, vocab * number / threads, vocab * (number + 1) / threads);
        run.barrier.wait(threads);
        if (number == 0) run.choose();
        run.barrier.wait(threads);
        if (!run.unfinished) return;
    }
}

}  // namespace

extern "C" void slipstream_continue(const decoder::Network* net, const decoder::PassArgs* given, ContinuationArgs* args,
                                    unsigned threads, decoder::Parallel parallel, decoder::TeamSize team_size) {
    static thread_local ContinuationScratch scratch;
    scratch.hidden.resize(net->hidden), scratch.logits.resize(net->head->out);
    scratch.features.resize(given->last), scratch.mask.assign(given->last, nullptr);
    int64_t place = 0;
    const int64_t first = 0;
    decoder::PassArgs pass_args = *given;
    pass_args.hidden = scratch.hidden.data(), pass_args.logits = scratch.logits.data();
    pass_args.features = scratch.features.data(), pass_args.mask = scratch.mask.data();
    pass_args.row = &args->row, pass_args.place = &place, pass_args.scored = &first;
    pass_args.tokens = pass_args.slots = 1;
    const auto pass = decoder::make_pass(*net, pass_args, threads, team_size);
    args->count = 0;
    ContinuationRun run{*pass, pass_args, *net, *args, scratch, place, decoder::team_size_of(threads, team_size), {}};
    decoder::run_team(parallel, threads, run_continuation, &run);
}
