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

#include "decoder.hpp"
#include "law.hpp"
#include "ranking.hpp"
#include "verify.hpp"

namespace {

using Unpack = int (*)(const linear::Matrix*, const int64_t*, int64_t, float*);  // `slipstream_unpack` of linear.cpp
using Clock = std::chrono::steady_clock;

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

// How a token is chosen and a draft is verified; numbered as `RULES` in cycle_run.py.
enum Rule : int64_t {
    GREEDY,   // the most probable token; the same must be drafted
    COUPLED,  // the winner of the race of its position; the same must be drafted
    TOKEN,    // a token of the law, or of the residual of the first drafted token that is rejected
    BLOCK,    // the same, with drafts verified as a whole
};

// What came of a cycle; laid out as `_Cycle` in cycle_run.py. Times are in seconds.
struct Cycle {
    int64_t drafted, emitted;
    double drafting, scoring;
};

// Laid out as `_CycleArgs` in cycle_run.py.
struct CycleArgs {
    const float* table;            // [vocabulary, hidden] the embedding, or null:
    const linear::Matrix* packed;  // the embedding in few bits
    Unpack unpack;
    const float *cos, *sin;  // by position
    float* const* features;  // by layer: [places, hidden] for its outputs, or null
    const int64_t* ends;     // end tokens
    HeadArgs* head;          // or null: nothing is drafted
    int64_t* token;          // the last committed token, behind those that the head has not read; receives what is emitted
    Cycle* cycle;            // [most] receives the cycles
    double temperature;                                // unless the rule is greedy
    int64_t rule, stream;                              // stream: the key that the row's draws are made of
    int64_t end_count, row, place, depth, most, left;  // left: tokens that may be emitted
    int64_t cycles, emitted;                           // how many there were
};

// The tokens of a pass over consecutive places of one row.
struct Tokens {
    std::vector<float> hidden, second, logits;
    std::vector<int64_t> row, place, scored;
    std::vector<uint8_t> seen;
    std::vector<const uint8_t*> mask;  // by layer
    std::vector<float*> features;

    // Makes them the tokens of a pass, from `first` on; each sees all places up to its own.
    void lay_out(decoder::PassArgs& args, const decoder::Network& net, int64_t own_row, int64_t first, int64_t count) {
        const int64_t used = first + count;
        hidden.resize(count * net.hidden), row.assign(count, own_row), place.resize(count), scored.resize(count);
        for (int64_t i = 0; i < count; ++i) place[i] = first + i, scored[i] = i;
        seen.assign(count > 1 ? count * used : 0, 0);
        if (count > 1)
            for (int64_t i = 0; i < count; ++i) std::fill_n(seen.begin() + i * used, first + i + 1, 1);
        mask.assign(args.last, count > 1 ? seen.data() : nullptr), features.assign(args.last, nullptr);
        args.hidden = hidden.data(), args.mask = mask.data(), args.features = features.data();
        args.row = row.data(), args.place = place.data(), args.scored = scored.data();
        args.tokens = count, args.used = used;
    }

    void expect_logits(decoder::PassArgs& args, const decoder::Network& net, int64_t count) {
        logits.resize(count * net.head->out);
        args.logits = logits.data(), args.slots = count;
    }
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

// A race for a token: over the target's law after a slot, or over the residual there.
struct Race {
    int64_t slot;
    uint64_t key;
    bool over_residual;
};

// What a thread keeps from call to call.
struct CycleScratch {
    Tokens target, head;
    std::vector<float> states, fused;
    std::vector<Leader> leaders;     // by slot and thread
    std::vector<float> weight, law;  // of the target's laws by slot; the head's laws by drafted token
    std::vector<double> sums;        // of the weights, by slot and part
    std::vector<float> total;        // of the weights, by slot
    std::vector<Race> races;
    std::vector<noise::Lead> leads;  // by race and thread
    std::vector<double> left;        // the residual
    std::vector<int64_t> draft;
    std::vector<float> chance;       // of each drafted token under the head's law
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
    int64_t depth = 0;        // of this cycle's draft at most
    int64_t accepted = 0;     // drafted tokens, by the rules that compare laws
    double residual_sum = 0;  // of the residual
    bool drafting = false, unfinished = true;
    Clock::time_point began{}, drafted{};

    int64_t place() const { return args.place + args.emitted; }  // of the last committed token
    const int64_t* last() const { return args.token + args.emitted; }
    bool ends(int64_t token) const {
        const int64_t* end = args.ends + args.end_count;
        return std::find(args.ends, end, token) != end;
    }

    void start_pass(const decoder::Network& own, const decoder::PassArgs& own_args) {
        pass = decoder::make_pass(own, own_args, threads, team_size);
        decoder::schedule(*pass);
    }

    void begin_cycle() {
        began = Clock::now();
        scratch.draft.clear(), scratch.chance.clear(), scratch.races.clear();
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

    bool samples() const { return args.rule != GREEDY; }
    bool compares() const { return args.rule == TOKEN || args.rule == BLOCK; }

    // The key of a draw of this cycle. Coupled draws have the key of their position, whatever they are for.
    uint64_t key(int64_t node, noise::Purpose purpose) const {
        const uint64_t start = place() + 1;
        if (args.rule == COUPLED) return noise::key_of(args.stream, start + node, 0, noise::FIELD);
        return noise::key_of(args.stream, start, node, purpose);
    }

    // The head's choice, as the index of its logit; negative if there is none.
    int64_t head_choice() {
        const int64_t count = args.head->net->head->out, drafts = scratch.draft.size();
        float chance = 0;
        int64_t index = -1;
        if (!samples()) return ranking::largest(head_args.logits, count, 1, &chance, &index) == 1 ? index : -1;
        scratch.law.resize((drafts + 1) * count);
        const auto own = static_cast<int64_t>(key(drafts, noise::DRAFT));
        const ranking::Slot slot{head_args.logits, args.head->ids, count, static_cast<float>(args.temperature), own,
                                 &scratch.law[drafts * count]};
        const float peak = ranking::rank(slot, ranking::DRAWN, 1, &chance, &index);
        scratch.chance.push_back(chance);
        return peak > 0 ? index : -1;
    }

    // Take the head's choice into the draft, and let the head read it unless the draft is complete.
    void draft_next() {
        const HeadArgs& head = *args.head;
        const int64_t index = head_choice();
        drafting = index >= 0;
        if (!drafting) return;
        const int64_t token = head.ids[index], drafts = scratch.draft.size(), hidden = head.net->hidden;
        scratch.draft.push_back(token);
        drafting = drafts + 1 < depth && !ends(token);
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
        const int64_t count = 1 + scratch.draft.size(), hidden = net.hidden;
        scratch.target.lay_out(pass_args, net, args.row, place(), count);
        scratch.target.expect_logits(pass_args, net, count);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t* token = i ? &scratch.draft[i - 1] : last();
            float* to = scratch.target.hidden.data() + i * hidden;
            if (args.table) std::memcpy(to, args.table + *token * hidden, hidden * sizeof(float));
            else args.unpack(args.packed, token, 1, to);
        }
        for (int64_t i = 0; i < pass_args.last; ++i)
            if (args.features[i]) scratch.target.features[i] = args.features[i] + (args.row + place()) * hidden;
        pass_args.cos = args.cos + place() * pass_args.rotated, pass_args.sin = args.sin + place() * pass_args.rotated;
        scratch.leaders.resize(count * threads);
        if (samples()) {
            const int64_t vocab = net.head->out;
            scratch.weight.resize(count * vocab), scratch.sums.resize(count * law::parts_of(vocab));
            scratch.total.resize(count), scratch.leads.resize(count * threads);
        }
        start_pass(net, pass_args);
    }

    void find_leaders(int64_t number, int64_t team) {
        const int64_t vocab = net.head->out;
        for (int64_t slot = 0; slot < pass_args.slots; ++slot)
            scratch.leaders[slot * threads + number] =
                leader(pass_args.logits + slot * vocab, vocab * number / team, vocab * (number + 1) / team);
    }

    // The most probable token after a slot.
    Leader best_of(int64_t slot, int64_t team) const {
        const Leader* found = scratch.leaders.data() + slot * threads;
        Leader best = found[0];
        for (int64_t n = 1; n < team; ++n) {
            best.finite = best.finite && found[n].finite;
            if (found[n].logit > best.logit) best.logit = found[n].logit, best.token = found[n].token;
        }
        return best;
    }

    // The weights of a thread's parts of the vocabulary, at every slot.
    void weigh(int64_t number, int64_t team) {
        const int64_t vocab = net.head->out, parts = law::parts_of(vocab);
        for (int64_t slot = 0; slot < pass_args.slots; ++slot) {
            const float best = best_of(slot, team).logit;
            for (int64_t part = number; part < parts; part += team) {
                const int64_t at = slot * vocab + part * law::PART, count = std::min(law::PART, vocab - part * law::PART);
                scratch.sums[slot * parts + part] =
                    law::weigh(pass_args.logits + at, best, args.temperature, count, &scratch.weight[at]);
            }
        }
    }

    // What is raced for. Nothing where some law cannot be told.
    void call_races(int64_t team) {
        const int64_t drafts = scratch.draft.size(), parts = law::parts_of(net.head->out);
        for (int64_t slot = 0; slot <= drafts; ++slot) {
            unfinished = unfinished && best_of(slot, team).finite;
            double sum = 0;
            for (int64_t part = 0; part < parts; ++part) sum += scratch.sums[slot * parts + part];
            scratch.total[slot] = static_cast<float>(sum);
        }
        if (!unfinished) return;
        if (compares()) return compare_laws();
        for (int64_t slot = 0; slot <= drafts; ++slot) scratch.races.push_back({slot, key(slot, noise::FIELD), false});
    }

    // The target's probability of a token after a slot.
    float prob(int64_t slot, int64_t token) const {
        return scratch.weight[slot * net.head->out + token] / scratch.total[slot];
    }

    // Accept a part of the draft, and let a token be drawn from the law after it or from the residual there.
    void compare_laws() {
        const int64_t drafts = scratch.draft.size(), vocab = net.head->out;
        std::vector<float> chance(drafts);
        for (int64_t i = 0; i < drafts; ++i) chance[i] = prob(i, scratch.draft[i]);
        const auto draw = [&](int64_t i) { return noise::uniform(key(i, noise::ACCEPT)); };
        const auto apply = [&](auto f, int64_t i, double scale) {
            scratch.left.resize(vocab);
            const int64_t many = args.head->net->head->out;
            const auto target = [this, i](int64_t token) { return prob(i, token); };
            return f(target, scale, args.head->ids, &scratch.law[i * many], many, vocab, scratch.left.data());
        };
        const auto excess = [&](int64_t i, double scale) {
            return apply([](auto... given) { return law::excess(given...); }, i, scale);
        };
        const verify::Accepted found =
            args.rule == TOKEN ? verify::by_token(chance.data(), scratch.chance.data(), drafts, draw)
                               : verify::by_block(chance.data(), scratch.chance.data(), drafts, draw, excess);
        accepted = found.count;
        const bool rejected = accepted < drafts;
        if (rejected) residual_sum = apply([](auto... given) { return law::residual(given...); }, accepted, found.scale);
        scratch.races.push_back({accepted, key(accepted, noise::EMIT), rejected});
    }

    // Who leads the races among a thread's tokens.
    void race(int64_t number, int64_t team) {
        const int64_t vocab = net.head->out, parts = law::parts_of(vocab);
        for (size_t n = 0; n < scratch.races.size(); ++n) {
            const Race& race = scratch.races[n];
            noise::Lead best;
            for (int64_t part = number; part < parts; part += team) {
                const int64_t first = part * law::PART, end = std::min(first + law::PART, vocab);
                const noise::Lead lead =
                    race.over_residual
                        ? law::leader(race.key, nullptr, scratch.left.data(), residual_sum, first, end)
                        : law::leader(race.key, nullptr, &scratch.weight[race.slot * vocab], scratch.total[race.slot], first, end);
                if (lead.time < best.time) best = lead;
            }
            scratch.leads[n * threads + number] = best;
        }
    }

    // Who wins a race; negative if nobody can.
    int64_t winner(int64_t n, int64_t team) const {
        noise::Lead first;
        for (int64_t i = 0; i < team; ++i) {
            const noise::Lead& own = scratch.leads[n * threads + i];
            if (own.time < first.time || (own.time == first.time && own.first < first.first)) first = own;
        }
        return first.first;
    }

    // The target's token after a slot; negative if it cannot be told.
    int64_t choice_of(int64_t slot, int64_t team) const {
        if (samples()) return winner(slot, team);
        const Leader best = best_of(slot, team);
        return best.finite ? best.token : -1;
    }

    // Writes what of the draft is accepted and the token after it. Returns how many, 0 where a token cannot be told.
    int64_t write(int64_t* to, int64_t team) const {
        const int64_t drafts = scratch.draft.size();
        if (compares()) {
            std::copy_n(scratch.draft.begin(), accepted, to);
            to[accepted] = winner(0, team);
            return to[accepted] < 0 ? 0 : accepted + 1;
        }
        int64_t count = 0;
        for (bool same = true; same; ++count) {
            to[count] = choice_of(count, team);
            if (to[count] < 0) return 0;
            same = count < drafts && scratch.draft[count] == to[count];
        }
        return count;
    }

    // Emit what was accepted and the token after it. The run ends where that cannot be told.
    void emit(int64_t team) {
        if (!unfinished) return;
        int64_t* to = args.token + args.emitted + 1;
        const int64_t drafts = scratch.draft.size(), count = write(to, team);
        unfinished = count > 0;
        if (!unfinished) return;
        const Clock::time_point now = Clock::now();
        const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
        args.cycle[args.cycles++] = {drafts, count, seconds(drafted - began), seconds(now - drafted)};
        args.emitted += count;
        unfinished = args.cycles < args.most && args.emitted < args.left;
        for (int64_t i = 0; i < count; ++i) unfinished = unfinished && !ends(to[i]);
    }
};

void run_cycles(void* data) {
    Run& run = *static_cast<Run*>(data);
    const int number = run.arrived.fetch_add(1), threads = run.team_size();
    const bool leads = number == 0;
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
        run.find_leaders(number, threads);
        if (run.samples()) {
            run.barrier.wait(threads);
            run.weigh(number, threads);
            alone([&] { run.call_races(threads); });
            run.race(number, threads);
        }
        alone([&] { run.emit(threads); });
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
    Run run{*net, *given, head_args, *args, scratch, threads, decoder::team_size_of(threads, team_size)};
    decoder::run_team(parallel, threads, run_cycles, &run);
}
