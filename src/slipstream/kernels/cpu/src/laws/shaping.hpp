// What a request changes in its logits: penalties, biases, token sets, and no end before some tokens. The reference is
// core/shaping.py, and all numbers are equal to its numbers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace shaping {
namespace {

constexpr float NEVER = -std::numeric_limits<float>::infinity();

// Some token ids; laid out as `TokensStruct` in shaping.py.
struct Tokens {
    const int64_t* id;
    int64_t count;

    const int64_t* begin() const { return id; }
    const int64_t* end() const { return id + count; }
};

// Laid out as `ChangesStruct` in shaping.py.
struct Changes {
    Tokens prompt, output;  // those that penalties count, up to the start of a run
    Tokens biased, suppressed, allowed, ends;
    const double* bias;
    int64_t penalises, restricts;  // whether there are penalties; whether only `allowed` are
    int64_t held_back;             // tokens to come before an end may
    double repetition, presence, frequency;
};

// A token of the text, and how often it is in the output.
struct Seen {
    int64_t token, count;
};

// The changes of a row's logits while its text grows.
class Shaper {
  public:
    bool active() const { return given != nullptr; }

    void start(const Changes* changes) {
        given = changes;
        text.clear(), emitted = 0;
        if (!active() || !given->penalises) return;
        for (int64_t token : given->prompt) text.push_back({token, 0});
        for (int64_t token : given->output) text.push_back({token, 1});
        merge(text);
    }

    void commit(const int64_t* token, int64_t count) {
        if (!active()) return;
        emitted += count;
        if (given->penalises) add(text, token, count);
    }

    // Change the logits after `count` drafted tokens. `at(token)`: the index of a token's logit, negative if it has none.
    template <class Index>
    void shape(float* logits, int64_t size, const int64_t* drafted, int64_t count, Index at) const {
        const auto set = [&](const Tokens& tokens, float value) {
            for (int64_t token : tokens)
                if (const int64_t i = at(token); i >= 0) logits[i] = value;
        };
        if (given->penalises) penalise(logits, drafted, count, at);
        for (int64_t n = 0; n < given->biased.count; ++n)
            if (const int64_t i = at(given->biased.id[n]); i >= 0) logits[i] += static_cast<float>(given->bias[n]);
        if (given->restricts) restrict_to(logits, size, at);
        set(given->suppressed, NEVER);
        if (emitted + count < given->held_back) set(given->ends, NEVER);
    }

  private:
    const Changes* given = nullptr;
    std::vector<Seen> text;  // each token once, in ascending order
    int64_t emitted = 0;     // in this run

    static void merge(std::vector<Seen>& all) {
        std::sort(all.begin(), all.end(), [](const Seen& a, const Seen& b) { return a.token < b.token; });
        size_t last = 0;
        for (size_t i = 1; i < all.size(); ++i)
            if (all[i].token == all[last].token) all[last].count += all[i].count;
            else all[++last] = all[i];
        if (!all.empty()) all.resize(last + 1);
    }

    static void add(std::vector<Seen>& all, const int64_t* token, int64_t count) {
        for (int64_t n = 0; n < count; ++n) {
            const auto where = std::lower_bound(all.begin(), all.end(), token[n],
                                                [](const Seen& seen, int64_t own) { return seen.token < own; });
            if (where != all.end() && where->token == token[n]) ++where->count;
            else all.insert(where, {token[n], 1});
        }
    }

    template <class Index>
    void penalise(float* logits, const int64_t* drafted, int64_t count, Index at) const {
        static thread_local std::vector<Seen> longer;
        const std::vector<Seen>* all = &text;
        if (count > 0) longer = text, add(longer, drafted, count), all = &longer;
        const float repetition = given->repetition, presence = given->presence, frequency = given->frequency;
        for (const Seen& seen : *all) {
            const int64_t i = at(seen.token);
            if (i < 0) continue;
            // products are rounded before they are added, and not fused with the addition
            const volatile float value = logits[i] > 0 ? logits[i] / repetition : logits[i] * repetition;
            const volatile float often = frequency * static_cast<float>(seen.count);
            logits[i] = seen.count ? value - (presence + often) : value;
        }
    }

    template <class Index>
    void restrict_to(float* logits, int64_t size, Index at) const {
        static thread_local std::vector<float> kept;
        kept.clear();
        for (int64_t token : given->allowed) kept.push_back(at(token) < 0 ? NEVER : logits[at(token)]);
        std::fill_n(logits, size, NEVER);
        for (int64_t n = 0; n < given->allowed.count; ++n)
            if (const int64_t i = at(given->allowed.id[n]); i >= 0) logits[i] = kept[n];
    }
};

}  // namespace
}  // namespace shaping
