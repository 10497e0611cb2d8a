// Decoding of one row, several cycles in one call: each emits a token of the target's, or first has a head draft a chain and
// then emits what of it a rule accepts, and one token more. Tokens are the most probable ones, or are drawn with the keys of
// core/noise.py. A run ends after an end token, and before a cycle whose logits are not all finite.
//
// In Python, what lies between two passes of a small model takes a tenth of a plain cycle and a quarter of one that drafts,
// because the weights that a pass reads evict everything else from the caches.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "run_parts.hpp"

namespace {

using run_parts::Clock, run_parts::Tokens;

// The head that drafts; laid out as `_HeadArgs` in cycle_run.py. Its slot t reads token t + 1 and a state of position t:
// the fused outputs of some of the target's layers there or, for drafted tokens, what the head gave for slot t - 1.
struct HeadArgs {
    const decoder::Network* net;
    const float *embedding, *cos, *sin;  // by token; by position
    const int64_t* ids;                  // [vocabulary] the token of each logit
    const linear::Matrix* fuse;          // of the states of all fused layers, each times its factor
    const float* factor;
    const float* const* state;  // by fused layer: [places, hidden] the target's outputs
    float *const *keys, *const *values;
    int64_t fused, rotated, row_step, head_step;
    int64_t row, held;  // its row of the cache, and how many slots of committed tokens are cached there
};

// What came of a cycle; laid out as `_Cycle` in cycle_run.py. Times are in seconds.
struct Cycle {
    int64_t drafted, emitted;
    double drafting, scoring;
};

// Laid out as `_CycleArgs` in cycle_run.py.
struct CycleArgs {
    run_parts::Inputs inputs;
    run_parts::RowDraws draws;
    HeadArgs* head;          // or null: nothing is drafted
    int64_t* token;          // the last committed token, behind those that the head has not read; receives what is emitted
    Cycle* cycle;            // [most] receives the cycles
    int64_t row, place, depth, most, left;  // left: tokens that may be emitted
    int64_t cycles, emitted;                // how many there were
};

// What a thread keeps from call to call.
struct CycleScratch {
    Tokens target, head;
    std::vector<float> states, fused;
    choice::Choice choice;
};

struct Run {
    const decoder::Network& net;
    decoder::PassArgs pass_args, head_args;
    CycleArgs& args;
    CycleScratch& scratch;
    unsigned threads;
    decoder::TeamSize team_size;
    std::unique_ptr<decoder::Pass, decoder::PassDeleter> pass{};
    std::unique_ptr<decoder::RowProduct, decoder::RowProductDeleter> fusion{};
    decoder::Barrier barrier{};
    std::atomic<int> arrived{0};
    int64_t depth = 0;  // of this cycle's draft at most
    bool drafting = false, unfinished = true;
    Clock::time_point began{}, drafted{};

    choice::Chain& draft() const { return scratch.choice.draft; }
    int64_t place() const { return args.place + args.emitted; }  // of the last committed token
    const int64_t* last() const { return args.token + args.emitted; }
    void start_pass(const decoder::Network& own, const decoder::PassArgs& own_args) {
        pass = decoder::make_pass(own, own_args, threads, team_size);
        decoder::schedule(*pass);
    }

    void begin_cycle() {
        began = Clock::now();
        draft().token.clear(), draft().chance.clear();
        scratch.choice.draws.start = place() + 1;
        depth = args.head ? std::min(args.depth, args.left - args.emitted - 1) : 0;
        drafting = depth > 0;
        if (drafting) gather_states();
    }

    // The target's states of the positions whose slots the head reads now: at least the last one.
    void gather_states() {
        const HeadArgs& head = *args.head;
        const int64_t first = std::min(head.held, place() - 1), count = place() - first, hidden = net.hidden;
        scratch.states.resize(count * head.fused * hidden), scratch.fused.resize(count * head.net->hidden);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t n = 0; n < head.fused; ++n) {
                const float* from = head.state[n] + (args.row + first + i) * hidden;
                float* to = scratch.states.data() + (i * head.fused + n) * hidden;
                for (int64_t k = 0; k < hidden; ++k) to[k] = from[k] * head.factor[n];
            }
        fusion = decoder::make_row_product(*head.fuse, scratch.states.data(), scratch.fused.data(), count, threads);
    }

    void embed(const HeadArgs& head, int64_t slot, int64_t token) {
        const int64_t hidden = head.net->hidden;
        std::memcpy(scratch.head.second.data() + slot * hidden, head.embedding + token * hidden, hidden * sizeof(float));
    }

    // Let the head read the slots of committed tokens; only what follows the last one is wanted.
    void read_committed() {
        HeadArgs& head = *args.head;
        const int64_t first = std::min(head.held, place() - 1), count = place() - first;
        start_head(first, count);
        std::copy(scratch.fused.begin(), scratch.fused.end(), scratch.head.hidden.begin());
        for (int64_t i = 0; i < count; ++i) embed(head, i, last()[i + 1 - count]);
        scratch.head.scored[0] = count - 1;
        head.held = place();
        start_pass(*head.net, head_args);
    }

    void start_head(int64_t first, int64_t count) {
        const HeadArgs& head = *args.head;
        scratch.head.lay_out(head_args, *head.net, head.row, first, count);
        scratch.head.expect_logits(head_args, *head.net, 1);
        scratch.head.second.resize(count * head.net->hidden);
        head_args.second = scratch.head.second.data();
        head_args.cos = head.cos + first * head.rotated, head_args.sin = head.sin + first * head.rotated;
    }

    // The head's choice, as the index of its logit; negative if there is none.
    int64_t head_choice() {
        const int64_t count = args.head->net->head->out, drafts = draft().token.size();
        const choice::Draws& draws = scratch.choice.draws;
        float chance = 0;
        int64_t index = -1;
        if (const shaping::Shaper& shaper = scratch.choice.shaper; shaper.active())
            shaper.shape(head_args.logits, count, draft().token.data(), drafts, [this, count](int64_t token) {
                const int64_t *ids = args.head->ids, *found = std::lower_bound(ids, ids + count, token);
                return found < ids + count && *found == token ? found - ids : int64_t{-1};
            });
        if (!draws.any()) return ranking::largest(head_args.logits, count, 1, &chance, &index) == 1 ? index : -1;
        draft().law.resize((drafts + 1) * count), draft().ids = args.head->ids, draft().many = count;
        const auto key = static_cast<int64_t>(draws.key(drafts, noise::DRAFT));
        const ranking::Slot slot{head_args.logits, args.head->ids, count, static_cast<float>(draws.temperature), key,
                                 &draft().law[drafts * count], &draws.limits};
        const float peak = ranking::rank(slot, ranking::DRAWN, 1, &chance, &index);
        draft().chance.push_back(chance);
        return peak > 0 ? index : -1;
    }

    // Take the head's choice into the draft, and let the head read it unless the draft is complete.
    void draft_next() {
        const HeadArgs& head = *args.head;
        const int64_t index = head_choice();
        drafting = index >= 0;
        if (!drafting) return;
        const int64_t token = head.ids[index], drafts = draft().token.size(), hidden = head.net->hidden;
        draft().token.push_back(token);
        drafting = drafts + 1 < depth && !args.draws.ends(token);
        if (!drafting) return;
        const float* state = scratch.head.hidden.data() + (head_args.tokens - 1) * hidden;
        std::copy(state, state + hidden, scratch.head.hidden.data());
        start_head(place() + drafts, 1);
        embed(head, 0, token);
        start_pass(*head.net, head_args);
    }

    // Let the target read the last committed token and the draft.
    void score() {
        drafted = Clock::now();
        const int64_t count = 1 + draft().token.size(), hidden = net.hidden;
        scratch.target.lay_out(pass_args, net, args.row, place(), count);
        scratch.target.expect_logits(pass_args, net, count);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t* token = i ? &draft().token[i - 1] : last();
            args.inputs.embed(token, hidden, scratch.target.hidden.data() + i * hidden);
        }
        for (int64_t i = 0; i < pass_args.last; ++i)
            if (args.inputs.features[i])
                scratch.target.features[i] = args.inputs.features[i] + (args.row + place()) * hidden;
        pass_args.cos = args.inputs.cos + place() * pass_args.rotated;
        pass_args.sin = args.inputs.sin + place() * pass_args.rotated;
        scratch.choice.start(pass_args.logits, net.head->out, team_size());
        start_pass(net, pass_args);
    }

    // Emit what was accepted and the token after it. The run ends where that cannot be told.
    void emit() {
        if (!unfinished) return;
        int64_t* to = args.token + args.emitted + 1;
        const int64_t drafts = draft().token.size(), count = scratch.choice.write(to);
        unfinished = count > 0;
        if (!unfinished) return;
        const Clock::time_point now = Clock::now();
        const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
        args.cycle[args.cycles++] = {drafts, count, seconds(drafted - began), seconds(now - drafted)};
        args.emitted += count;
        scratch.choice.shaper.commit(to, count);
        unfinished = args.cycles < args.most && args.emitted < args.left;
        for (int64_t i = 0; i < count; ++i) unfinished = unfinished && !args.draws.ends(to[i]);
    }
};

void run_cycles(void* data) {
    Run& run = *static_cast<Run*>(data);
    const int number = run.arrived.fetch_add(1), threads = run.team_size();
    const bool leads = number == 0;
    choice::Choice& choice = run.scratch.choice;
    const auto alone = [&](auto f) {  // one thread, while the others wait
        run.barrier.wait(threads);
        if (leads) f();
        run.barrier.wait(threads);
    };
    while (run.unfinished) {
        alone([&] { run.begin_cycle(); });
        if (run.drafting) {
            decoder::run_row_product(*run.fusion);
            alone([&] { run.read_committed(); });
        }
        while (run.drafting) {
            decoder::run_layers(*run.pass);
            alone([&] { run.draft_next(); });
        }
        alone([&] { run.score(); });
        decoder::run_layers(*run.pass);
        run.barrier.wait(threads);
        choice.find_leaders(number);
        if (choice.shaper.active()) run.barrier.wait(threads), choice.shape(number);
        if (choice.draws.any()) {
            run.barrier.wait(threads);
            if (choice.limits_logits()) choice.limit(number), run.barrier.wait(threads);
            choice.weigh(number);
            if (choice.truncates()) run.barrier.wait(threads), choice.truncate(number);
            alone([&] { run.unfinished = choice.prepare_races(); });
            choice.race(number);
        }
        alone([&] { run.emit(); });
    }
}

}  // namespace

extern "C" void slipstream_cycle_run(const decoder::Network* net, const decoder::PassArgs* given, CycleArgs* args,
                                     unsigned threads, decoder::Parallel parallel, decoder::TeamSize team_size) {
    static thread_local CycleScratch scratch;
    args->cycles = args->emitted = 0;
    decoder::PassArgs head_args{};
    if (const HeadArgs* head = args->head) {
        head_args.keys = head->keys, head_args.values = head->values, head_args.rotated = head->rotated;
        head_args.row_step = head->row_step, head_args.head_step = head->head_step, head_args.last = 1;
    }
    args->draws.begin(scratch.choice);
    Run run{*net, *given, head_args, *args, scratch, threads, decoder::team_size_of(threads, team_size)};
    decoder::run_team(parallel, threads, run_cycles, &run);
}
