// The tokens that a cycle emits: what a rule accepts of a drafted chain, and one token more. The threads of a team work on it in
// steps with barriers between them: `find_leaders`; `shape` for requests that change logits; then, unless the rule is greedy,
// `limit` for top-k, `weigh`, `truncate` for top-p and min-p, `prepare_races` by one thread, and `race`. After that one thread
// writes the tokens. References are core/shaping.py, core/sampling.py, core/verify and core/noise.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "law.hpp"
#include "ranking.hpp"
#include "shaping.hpp"
#include "truncate.hpp"
#include "verify.hpp"

namespace choice {
namespace {

// How a token is chosen and a draft is verified; numbered as `RULES` in run_parts.py.
enum Rule : int64_t {
    GREEDY,   // the most probable token; the same must be drafted
    COUPLED,  // the winner of the race of its position; the same must be drafted
    TOKEN,    // a token of the law, or of the residual of the first drafted token that is rejected
    BLOCK,    // the same, with drafts verified as a whole
};

// Where the draws of a cycle come from.
struct Draws {
    Rule rule;
    double temperature;
    uint64_t stream;    // the key that those of the row's draws are made of
    truncation::Truncation limits{};
    uint64_t start = 0;  // committed tokens at the start of the cycle

    bool any() const { return rule != GREEDY; }
    // Coupled draws have the key of their position, whatever they are for.
    uint64_t key(int64_t node, noise::Purpose purpose) const {
        if (rule == COUPLED) return noise::key_of(stream, start + node, 0, noise::FIELD);
        return noise::key_of(stream, start, node, purpose);
    }
};

// A drafted chain.
struct Chain {
    std::vector<int64_t> token;
    std::vector<float> chance, law;  // of each token under the head's law; the laws, [tokens, many]
    const int64_t* ids = nullptr;    // [many] the tokens of a law
    int64_t many = 0;
};

struct Leader {
    float logit;
    int64_t token;
    bool finite;
};

// A race for a token: over the target's law after a slot, or over the residual there.
struct Race {
    int64_t slot;
    uint64_t key;
    bool over_residual;
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

// Kept from call to call, for its memory.
struct Choice {
    Chain draft;
    Draws draws{};
    shaping::Shaper shaper;
    float* logits = nullptr;        // [slots, vocab]
    int64_t vocab = 0, team = 1;    // team: threads
    int64_t accepted = 0;           // drafted tokens, by the rules that compare laws
    double residual_sum = 0;
    std::vector<Leader> leaders;     // by slot and thread
    std::vector<float> weight;       // of the laws, by slot
    std::vector<double> sums;        // of the weights, by slot and part
    std::vector<float> total;        // of the weights, by slot
    std::vector<float> least;        // (logit - largest) / temperature that top-k keeps, by slot
    std::vector<Race> races;
    std::vector<noise::Lead> leads;  // by race and thread
    std::vector<double> left;        // the residual

    int64_t slots() const { return draft.token.size() + 1; }
    int64_t parts() const { return law::parts_of(vocab); }
    bool compares() const { return draws.rule == TOKEN || draws.rule == BLOCK; }
    bool limits_logits() const { return draws.any() && draws.limits.by_logits(vocab); }
    bool truncates() const { return draws.any() && draws.limits.by_probability(); }

    void start(float* given, int64_t size, int64_t threads) {
        logits = given, vocab = size, team = threads;
        leaders.resize(slots() * team), races.clear();
        if (!draws.any()) return;
        weight.resize(slots() * vocab), sums.resize(slots() * parts()), total.resize(slots()), leads.resize(slots() * team);
        least.assign(slots(), -std::numeric_limits<float>::infinity());
    }

    void find_leaders(int64_t number) {
        for (int64_t slot = 0; slot < slots(); ++slot)
            leaders[slot * team + number] = leader(logits + slot * vocab, vocab * number / team, vocab * (number + 1) / team);
    }

    // Change the logits at a thread's slots, and find their leaders again.
    void shape(int64_t number) {
        const auto at = [this](int64_t token) { return token < vocab ? token : -1; };
        for (int64_t slot = number; slot < slots(); slot += team) {
            if (!best_of(slot).finite) continue;
            float* line = logits + slot * vocab;
            shaper.shape(line, vocab, draft.token.data(), slot, at);
            Leader best{0, 0, true};
            best.finite = ranking::largest(line, vocab, 1, &best.logit, &best.token) == 1;
            std::fill_n(leaders.data() + slot * team, team, best);
        }
    }

    // The most probable token after a slot.
    Leader best_of(int64_t slot) const {
        const Leader* found = leaders.data() + slot * team;
        Leader best = found[0];
        for (int64_t n = 1; n < team; ++n) {
            best.finite = best.finite && found[n].finite;
            if (found[n].logit > best.logit) best.logit = found[n].logit, best.token = found[n].token;
        }
        return best;
    }

    // What top-k keeps at a thread's slots.
    void limit(int64_t number) {
        const float temperature = draws.temperature;
        for (int64_t slot = number; slot < slots(); slot += team)
            if (const Leader best = best_of(slot); best.finite)
                least[slot] = truncation::least_kept(logits + slot * vocab, vocab, best.logit, temperature, draws.limits.top_k);
    }

    // The weights of a thread's parts of the vocabulary, at every slot.
    void weigh(int64_t number) {
        for (int64_t slot = 0; slot < slots(); ++slot) {
            const float best = best_of(slot).logit;
            for (int64_t part = number; part < parts(); part += team) {
                const int64_t at = slot * vocab + part * law::PART, count = std::min(law::PART, vocab - part * law::PART);
                sums[slot * parts() + part] = law::weigh(logits + at, best, draws.temperature, least[slot], count, &weight[at]);
            }
        }
    }

    // The sum of a slot's weights.
    float sum_of(int64_t slot) const {
        double sum = 0;
        for (int64_t part = 0; part < parts(); ++part) sum += sums[slot * parts() + part];
        return static_cast<float>(sum);
    }

    // Make the weights of a thread's slots the probabilities that top-p and min-p leave.
    void truncate(int64_t number) {
        for (int64_t slot = number; slot < slots(); slot += team) {
            if (!best_of(slot).finite) continue;
            float *line = &weight[slot * vocab], sum = sum_of(slot);
            for (int64_t i = 0; i < vocab; ++i) line[i] /= sum;
            truncation::by_probability(line, vocab, draws.limits);
        }
    }

    // Decide what is raced for. False where some law cannot be told.
    bool prepare_races() {
        for (int64_t slot = 0; slot < slots(); ++slot) {
            if (!best_of(slot).finite) return false;
            total[slot] = truncates() ? 1 : sum_of(slot);
        }
        if (compares()) compare_laws();
        else
            for (int64_t slot = 0; slot < slots(); ++slot) races.push_back({slot, draws.key(slot, noise::FIELD), false});
        return true;
    }

    // The target's probability of a token after a slot.
    float prob(int64_t slot, int64_t token) const { return weight[slot * vocab + token] / total[slot]; }

    // f(the target's law, scale, the head's law, where the difference goes) of drafted token i.
    template <class Function>
    double difference(Function f, int64_t i, double scale) {
        left.resize(vocab);
        const auto target = [this, i](int64_t token) { return prob(i, token); };
        return f(target, scale, draft.ids, &draft.law[i * draft.many], draft.many, vocab, left.data());
    }

    // Accept a part of the draft, and let a token be drawn from the law after it or from the residual there.
    void compare_laws() {
        const int64_t drafts = draft.token.size();
        std::vector<float> chance(drafts);
        for (int64_t i = 0; i < drafts; ++i) chance[i] = prob(i, draft.token[i]);
        const auto draw = [&](int64_t i) { return noise::uniform(draws.key(i, noise::ACCEPT)); };
        const auto excess = [&](int64_t i, double scale) {
            return difference([](auto... given) { return law::excess(given...); }, i, scale);
        };
        const verify::Accepted found =
            draws.rule == TOKEN ? verify::by_token(chance.data(), draft.chance.data(), drafts, draw)
                                : verify::by_block(chance.data(), draft.chance.data(), drafts, draw, excess);
        accepted = found.count;
        const bool rejected = accepted < drafts;
        if (rejected)
            residual_sum = difference([](auto... given) { return law::residual(given...); }, accepted, found.scale);
        races.push_back({accepted, draws.key(accepted, noise::EMIT), rejected});
    }

    // Who leads the races among a thread's tokens.
    void race(int64_t number) {
        for (size_t n = 0; n < races.size(); ++n) {
            const Race& own = races[n];
            const float* line = &weight[own.slot * vocab];
            noise::Lead best;
            for (int64_t part = number; part < parts(); part += team) {
                const int64_t first = part * law::PART, end = std::min(first + law::PART, vocab);
                const noise::Lead lead = own.over_residual
                                             ? law::leader(own.key, nullptr, left.data(), residual_sum, first, end)
                                             : law::leader(own.key, nullptr, line, total[own.slot], first, end);
                if (lead.time < best.time) best = lead;
            }
            leads[n * team + number] = best;
        }
    }

    // Who wins a race; negative if nobody can.
    int64_t winner(int64_t n) const {
        noise::Lead first;
        for (int64_t i = 0; i < team; ++i) {
            const noise::Lead& own = leads[n * team + i];
            if (own.time < first.time || (own.time == first.time && own.first < first.first)) first = own;
        }
        return first.first;
    }

    // The target's token after a slot; negative if it cannot be told.
    int64_t token_after(int64_t slot) const {
        if (draws.any()) return winner(slot);
        const Leader best = best_of(slot);
        return best.finite ? best.token : -1;
    }

    // Writes what of the draft is accepted and the token after it. Returns how many, 0 where a token cannot be told.
    int64_t write(int64_t* to) const {
        if (compares()) {
            std::copy_n(draft.token.begin(), accepted, to);
            to[accepted] = winner(0);
            return to[accepted] < 0 ? 0 : accepted + 1;
        }
        int64_t count = 0;
        for (bool same = true; same; ++count) {
            to[count] = token_after(count);
            if (to[count] < 0) return 0;
            same = count + 1 < slots() && draft.token[count] == to[count];
        }
        return count;
    }
};

}  // namespace
}  // namespace choice
