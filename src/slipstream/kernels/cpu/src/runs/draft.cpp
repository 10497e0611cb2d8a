// Drafts of a head, all rows side by side, in one call: chains, and best-first trees whose candidates are chosen. The
// reference that defines the results is `drafters/grow.py`.
//
// Each row has one pool of candidates, in the order in which they were ranked: the likeliest few after the committed end,
// then, level by level, the likeliest few after each node that was opened. On each level the likeliest candidates that are
// also among the likeliest of the pool are opened. The draft is the likeliest candidates of the pool. A path's probability
// never grows along the path, and the earlier of two equal candidates wins, so the ancestors of a chosen node are chosen.
//
// Where draft and target race on the same noise at a position, a token's probability is that of winning given the noise. It
// is proportional to e^(logit / temperature) / E, where E is the token's exponential random number. A chain is a tree of
// width 1, either of likeliest tokens or of sampled tokens; for sampled tokens the distributions are returned too.

#include <algorithm>
#include <vector>

#include "../laws/ranking.hpp"
#include "../passes/decoder.hpp"

namespace {

// What is drafted for each row, and the results; laid out as `_DraftArgs` in draft.py.
struct DraftArgs {
    const float *embedding, *cos, *sin;  // by token; by position
    const int64_t* ids;                  // [vocabulary] the token of each logit
    const float *state, *logits;         // [rows, hidden], [rows, vocabulary] at the committed ends
    const int64_t *row, *start;          // [rows] the row of the cache, and the place of the first drafted slot there
    const int64_t *depth, *width, *nodes;
    const double *floor, *temperature;  // the least probability of the likeliest token for a successor to be drafted
    const int64_t *ends, *ends_from;    // end tokens of all rows; [rows + 1] where each row's begin
    int64_t *token, *parent, *count;    // [rows, most] the draft, parents numbered within the row; [rows] its nodes
    float* prob;                        // [rows, most] of each token after its parent
    float* law;                         // [rows, levels, vocabulary] the distributions tokens were sampled from, if any
    const int64_t* key;                 // [rows, levels] keys of the noise at the next positions, for RACED and DRAWN
    const truncation::Truncation* limits;  // [rows] of what DRAWN samples from, or null
    int64_t rows, most, levels, mode;
};

struct Candidate {
    int64_t token, parent, place;  // the place in the cache, -1: it was not opened
    float prob;
    double weight;  // the probability of its path
};

// The candidates of one row.
struct CandidatePool {
    std::vector<Candidate> candidates;
    std::vector<int64_t> order, level, top;
    int64_t earlier, opened;  // candidates of earlier levels; nodes that were opened

    bool ahead(int64_t a, int64_t b) const {
        return candidates[a].weight > candidates[b].weight || (candidates[a].weight == candidates[b].weight && a < b);
    }
    // Keep the likeliest `count` of these candidates, in the order of the pool.
    void keep_best(std::vector<int64_t>& chosen, int64_t count) const {
        if (count < static_cast<int64_t>(chosen.size())) {
            std::nth_element(chosen.begin(), chosen.begin() + count, chosen.end(),
                             [&](int64_t a, int64_t b) { return ahead(a, b); });
            chosen.resize(count);
        }
        std::sort(chosen.begin(), chosen.end());
    }
    void select_top(int64_t nodes) {
        top.resize(candidates.size());
        for (size_t i = 0; i < top.size(); ++i) top[i] = i;
        keep_best(top, nodes);
    }
};

// A node whose successors are ranked: its row, its candidate in the pool (-1: the committed end), and the slot of the level
// before that it follows.
struct Slot {
    int64_t row, node, parent;
};

// What a thread keeps from call to call: the pools, the slots of this level and the next, and the arguments of a pass.
struct DraftScratch {
    std::vector<CandidatePool> pools;
    std::vector<Slot> slots, next;
    std::vector<float> state[2], embedded, cos, sin, logits;
    std::vector<float> prob, peak;  // [slots, widest] of the ranked tokens; [slots] of the likeliest token
    std::vector<int64_t> row, place, scored, index;  // index: [slots, widest] of the ranked tokens in the logits
    std::vector<uint8_t> mask;
    std::vector<const uint8_t*> masks;  // by layer
};

// One call: a team of threads ranks the slots of a level, one of them opens the next level, all run the head's pass.
struct DraftRun {
    decoder::Pass& pass;
    decoder::PassArgs& pass_args;
    const decoder::Network& net;
    const DraftArgs& args;
    DraftScratch& scratch;
    decoder::TeamSize team_size;
    int64_t widest, vocab;
    const float* logits;  // of the slots of this level
    int64_t level = 0;
    bool unfinished = true;
    decoder::WorkQueue slots_to_rank;
    decoder::Barrier barrier;
    std::atomic<int> arrived{0};

    // Rank the tokens that may follow one slot.
    void rank(int64_t slot) {
        const int64_t r = scratch.slots[slot].row, line = r * args.levels + level;
        const ranking::Slot own{logits + slot * vocab, args.ids, vocab, static_cast<float>(args.temperature[r]),
                                args.key[line], args.law + line * vocab, args.limits ? args.limits + r : nullptr};
        const int64_t count = std::min(vocab, args.width[r]);
        float* prob = scratch.prob.data() + slot * widest;
        std::fill(prob, prob + widest, 0.0f);
        scratch.peak[slot] = ranking::rank(own, args.mode, count, prob, scratch.index.data() + slot * widest);
    }

    bool ends(int64_t r, int64_t token) const {
        const int64_t *from = args.ends + args.ends_from[r], *to = args.ends + args.ends_from[r + 1];
        return std::find(from, to, token) != to;
    }

    // Add what follows the slots of this level to the pools, and make the slots of the next level.
    void next_level() {
        for (size_t i = 0; i < scratch.slots.size(); ++i) {
            const Slot slot = scratch.slots[i];
            CandidatePool& pool = scratch.pools[slot.row];
            const float* prob = scratch.prob.data() + i * widest;
            const double before = slot.node < 0 ? 1.0 : pool.candidates[slot.node].weight;
            if (scratch.peak[i] < args.floor[slot.row]) continue;
            for (int64_t k = 0; k < std::min(widest, args.width[slot.row]) && prob[k] > 0; ++k) {
                const float own = std::min(1.0f, prob[k]);
                pool.candidates.push_back({args.ids[scratch.index[i * widest + k]], slot.node, -1, own, before * own});
            }
        }
        ++level;
        scratch.next.clear();
        size_t first = 0;
        for (int64_t r = 0; r < args.rows; ++r) {
            CandidatePool& pool = scratch.pools[r];
            while (first < scratch.slots.size() && scratch.slots[first].row < r) ++first;
            if (level < args.depth[r]) open(pool, r, first);
            pool.earlier = pool.candidates.size();
        }
        scratch.slots.swap(scratch.next);
        unfinished = !scratch.slots.empty();
    }

    // Open the likeliest of a row's new candidates, if they are among the likeliest of the pool.
    void open(CandidatePool& pool, int64_t r, size_t first) {
        const int64_t size = pool.candidates.size();
        pool.level.clear();
        for (int64_t i = pool.earlier; i < size; ++i)
            if (!ends(r, pool.candidates[i].token)) pool.level.push_back(i);
        if (pool.level.empty()) return;
        pool.keep_best(pool.level, args.width[r]);
        pool.select_top(args.nodes[r]);
        for (int64_t node : pool.level) {
            if (!std::binary_search(pool.top.begin(), pool.top.end(), node)) continue;
            while (scratch.slots[first].node != pool.candidates[node].parent) ++first;
            pool.candidates[node].place = args.start[r] + pool.opened++;
            scratch.next.push_back({r, node, static_cast<int64_t>(first)});
        }
    }

    // Write the slots of this level as tokens of the next pass; no thread may be running the pass.
    void fill_pass() {
        const int64_t n = scratch.slots.size(), hidden = net.hidden, rotated = pass_args.rotated;
        const float* from = level == 1 ? args.state : scratch.state[level % 2].data();
        float* to = scratch.state[(level + 1) % 2].data();
        pass_args.used = 0;
        for (const Slot& slot : scratch.slots)
            pass_args.used = std::max(pass_args.used, scratch.pools[slot.row].candidates[slot.node].place + 1);
        scratch.mask.assign(n * pass_args.used, 0);
        for (int64_t i = 0; i < n; ++i) {
            const Slot slot = scratch.slots[i];
            const CandidatePool& pool = scratch.pools[slot.row];
            const int64_t start = args.start[slot.row], position = start + level - 1;
            const auto copy = [&](std::vector<float>& line, const float* of, int64_t size) {
                std::memcpy(line.data() + i * size, of, size * sizeof(float));
            };
            std::memcpy(to + i * hidden, from + slot.parent * hidden, hidden * sizeof(float));
            copy(scratch.embedded, args.embedding + pool.candidates[slot.node].token * hidden, hidden);
            copy(scratch.cos, args.cos + position * rotated, rotated);
            copy(scratch.sin, args.sin + position * rotated, rotated);
            scratch.row[i] = args.row[slot.row], scratch.place[i] = pool.candidates[slot.node].place, scratch.scored[i] = i;
            uint8_t* visible = scratch.mask.data() + i * pass_args.used;
            std::memset(visible, 1, start);
            for (int64_t node = slot.node; node >= 0; node = pool.candidates[node].parent)
                visible[pool.candidates[node].place] = 1;
        }
        std::fill(scratch.masks.begin(), scratch.masks.end(), scratch.mask.data());
        pass_args.hidden = to, pass_args.tokens = pass_args.slots = n;
        decoder::schedule(pass);
        logits = pass_args.logits;
        slots_to_rank.next = 0;
    }

    // Write the likeliest candidates of each pool as the drafts.
    void write_drafts() {
        for (int64_t r = 0; r < args.rows; ++r) {
            CandidatePool& pool = scratch.pools[r];
            pool.select_top(args.nodes[r]);
            pool.order.assign(pool.candidates.size(), -1);
            for (size_t n = 0; n < pool.top.size(); ++n) {
                const Candidate& own = pool.candidates[pool.top[n]];
                const int64_t to = r * args.most + n;
                pool.order[pool.top[n]] = n;
                args.token[to] = own.token, args.prob[to] = own.prob;
                args.parent[to] = own.parent < 0 ? -1 : pool.order[own.parent];
            }
            args.count[r] = pool.top.size();
        }
    }
};

void run_draft(void* data) {
    DraftRun& run = *static_cast<DraftRun*>(data);
    const bool leads = run.arrived.fetch_add(1) == 0;
    const int threads = run.team_size();
    while (true) {
        run.barrier.wait(threads);
        run.slots_to_rank.share(run.scratch.slots.size(), [&](int64_t i) { run.rank(i); });
        run.barrier.wait(threads);
        if (leads) {
            run.next_level();
            if (run.unfinished) run.fill_pass();
        }
        run.barrier.wait(threads);
        if (!run.unfinished) break;
        decoder::run_layers(run.pass);
    }
    if (leads) run.write_drafts();
}

// Make room for the widest level, whose slots are counted, and start at the committed ends.
int64_t reset(DraftScratch& scratch, const DraftArgs& args, const decoder::Network& net, const decoder::PassArgs& pass_args) {
    int64_t slots = 0, widest = 1;
    scratch.pools.resize(args.rows);
    scratch.slots.clear();
    for (int64_t r = 0; r < args.rows; ++r) {
        CandidatePool& pool = scratch.pools[r];
        pool.candidates.clear(), pool.earlier = pool.opened = 0;
        if (args.depth[r] > 0) scratch.slots.push_back({r, -1, 0});
        slots += args.width[r], widest = std::max(widest, args.width[r]);
    }
    for (auto& state : scratch.state) state.resize(slots * net.hidden);
    scratch.embedded.resize(slots * net.hidden), scratch.logits.resize(slots * net.head->out);
    scratch.cos.resize(slots * pass_args.rotated), scratch.sin.resize(slots * pass_args.rotated);
    scratch.prob.resize(slots * widest), scratch.index.resize(slots * widest), scratch.peak.resize(slots);
    scratch.row.resize(slots), scratch.place.resize(slots), scratch.scored.resize(slots);
    scratch.masks.resize(pass_args.last);
    return slots;
}

}  // namespace

extern "C" void slipstream_draft(const decoder::Network* net, const decoder::PassArgs* given, const DraftArgs* args,
                                 unsigned threads, decoder::Parallel parallel, decoder::TeamSize team_size) {
    static thread_local DraftScratch scratch;
    decoder::PassArgs pass_args = *given;
    pass_args.tokens = pass_args.slots = reset(scratch, *args, *net, pass_args);
    pass_args.second = scratch.embedded.data(), pass_args.cos = scratch.cos.data(), pass_args.sin = scratch.sin.data();
    pass_args.logits = scratch.logits.data(), pass_args.row = scratch.row.data(), pass_args.place = scratch.place.data();
    pass_args.scored = scratch.scored.data(), pass_args.mask = scratch.masks.data();
    const auto pass = decoder::make_pass(*net, pass_args, threads, team_size);
    const int64_t widest = *std::max_element(args->width, args->width + args->rows);
    const decoder::TeamSize size = decoder::team_size_of(threads, team_size);
    DraftRun run{*pass, pass_args, *net, *args, scratch, size, widest, net->head->out, args->logits};
    decoder::run_team(parallel, threads, run_draft, &run);
}
