// What runs of several cycles share: the inputs of a pass, how a row's tokens are drawn, and the tokens of a pass.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "../laws/choice.hpp"
#include "../passes/decoder.hpp"

namespace run_parts {
namespace {

using Clock = std::chrono::steady_clock;
using Unpack = int (*)(const linear::Matrix*, const int64_t*, int64_t, float*);  // `slipstream_unpack` of linear.cpp

// Laid out as `InputsStruct` in run_parts.py.
struct Inputs {
    const float* table;            // [vocabulary, hidden] the embedding, or null:
    const linear::Matrix* packed;  // the embedding in few bits
    Unpack unpack;
    const float *cos, *sin;  // by position
    float* const* features;  // by layer: [places, hidden] for its outputs, or null

    void embed(const int64_t* token, int64_t hidden, float* to) const {
        if (table) std::memcpy(to, table + *token * hidden, hidden * sizeof(float));
        else unpack(packed, token, 1, to);
    }
};

// How the tokens of a row are drawn; laid out as `RowDrawsStruct` in run_parts.py.
struct RowDraws {
    const int64_t* end;  // end tokens
    double temperature;  // unless the rule is greedy
    truncation::Truncation limits;
    const shaping::Changes* changes;   // of the row's logits, or null
    int64_t end_count, rule, stream;  // stream: the key that the row's draws are made of

    bool ends(int64_t token) const { return std::find(end, end + end_count, token) != end + end_count; }
    void begin(choice::Choice& choice) const {
        choice.draws = {static_cast<choice::Rule>(rule), temperature, static_cast<uint64_t>(stream), limits};
        choice.shaper.start(changes);
    }
};

// The tokens of a pass.
struct Tokens {
    std::vector<float> hidden, second, logits, cos, sin;
    std::vector<int64_t> row, place, scored;
    std::vector<uint8_t> seen;
    std::vector<const uint8_t*> mask;  // by layer
    std::vector<float*> features;

    // Makes them the tokens of a pass over one row, from place `first` on.
    void lay_out(decoder::PassArgs& args, const decoder::Network& net, int64_t own_row, int64_t first, int64_t count) {
        row.assign(count, own_row), place.resize(count);
        for (int64_t i = 0; i < count; ++i) place[i] = first + i;
        finish(args, net);
    }

    // Makes `row` and `place` those of a pass; each token sees all places of its row up to its own.
    void finish(decoder::PassArgs& args, const decoder::Network& net) {
        const int64_t count = row.size(), used = *std::max_element(place.begin(), place.end()) + 1;
        hidden.resize(count * net.hidden), scored.resize(count);
        for (int64_t i = 0; i < count; ++i) scored[i] = i;
        seen.assign(count > 1 ? count * used : 0, 0);
        if (count > 1)
            for (int64_t i = 0; i < count; ++i) std::fill_n(seen.begin() + i * used, place[i] + 1, 1);
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

}  // namespace
}  // namespace run_parts
