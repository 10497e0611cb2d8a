// Decoding of several rows without drafts, several cycles in one call: each cycle emits a token of every row. A run ends after
// the end token of any row, and before a cycle in which some row's token cannot be told. See cycle_run.cpp.

#include <atomic>
#include <vector>

#include "run_parts.hpp"

namespace {

using run_parts::Clock, run_parts::Tokens;

// Laid out as `_RowArgs` in rows_run.py.
struct RowArgs {
    run_parts::RowDraws draws;
    int64_t* token;  // the last committed token; receives what is emitted
    int64_t row, place;
};

// Laid out as `_RowsArgs` in rows_run.py.
struct RowsArgs {
    run_parts::Inputs inputs;
    const RowArgs* row;  // [rows]
    double* seconds;     // [most] of each cycle
    int64_t rows, most, cycles;
};

// What a thread keeps from call to call.
struct RowsScratch {
    Tokens tokens;
    std::vector<choice::Choice> choices;      // by row
    std::vector<std::vector<float>> outputs;  // by layer that is kept, [rows, hidden]
};

struct RowsRun {
    const decoder::Network& net;
    decoder::PassArgs pass_args;
    RowsArgs& args;
    RowsScratch& scratch;
    unsigned threads;
    decoder::TeamSize team_size;
    bool shapes = false, samples = false, limits = false, truncates = false;  // whether any row needs this
    std::unique_ptr<decoder::Pass, decoder::PassDeleter> pass{};
    decoder::Barrier barrier{};
    std::atomic<int> arrived{0};
    bool unfinished = true;
    Clock::time_point began{};

    void prepare() {
        scratch.choices.resize(args.rows);
        for (int64_t r = 0; r < args.rows; ++r) {
            choice::Choice& own = scratch.choices[r];
            args.row[r].draws.begin(own);
            own.draft.token.clear(), own.draft.chance.clear();
            own.vocab = net.head->out;
            shapes |= own.shaper.active(), samples |= own.draws.any();
            limits |= own.limits_logits(), truncates |= own.truncates();
        }
    }

    // Let the model read the last token of every row.
    void score() {
        began = Clock::now();
        Tokens& tokens = scratch.tokens;
        const int64_t hidden = net.hidden, rotated = pass_args.rotated;
        tokens.row.resize(args.rows), tokens.place.resize(args.rows);
        tokens.cos.resize(args.rows * rotated), tokens.sin.resize(args.rows * rotated);
        for (int64_t r = 0; r < args.rows; ++r) {
            const int64_t place = args.row[r].place + args.cycles;
            tokens.row[r] = args.row[r].row, tokens.place[r] = place;
            std::copy_n(args.inputs.cos + place * rotated, rotated, &tokens.cos[r * rotated]);
            std::copy_n(args.inputs.sin + place * rotated, rotated, &tokens.sin[r * rotated]);
        }
        tokens.finish(pass_args, net), tokens.expect_logits(pass_args, net, args.rows);
        pass_args.cos = tokens.cos.data(), pass_args.sin = tokens.sin.data();
        for (int64_t r = 0; r < args.rows; ++r) {
            args.inputs.embed(args.row[r].token + args.cycles, hidden, &tokens.hidden[r * hidden]);
            choice::Choice& own = scratch.choices[r];
            own.draws.start = args.row[r].place + args.cycles + 1;
            own.start(pass_args.logits + r * net.head->out, net.head->out, team_size());
        }
        scratch.outputs.resize(pass_args.last);
        for (int64_t i = 0; i < pass_args.last; ++i)
            if (args.inputs.features[i]) {
                scratch.outputs[i].resize(args.rows * hidden);
                tokens.features[i] = scratch.outputs[i].data();
            }
        pass = decoder::make_pass(net, pass_args, threads, team_size);
        decoder::schedule(*pass);
    }

    // f(choice, number) of every row that has the property, where `number` makes the threads begin with different rows.
    template <class Has, class Function>
    void each(int number, Has has, Function f) {
        const int team = team_size();
        for (int64_t r = 0; r < args.rows; ++r)
            if (choice::Choice& own = scratch.choices[r]; has(own)) f(own, (number + r) % team);
    }

    bool prepare_races() {
        bool able = true;
        for (choice::Choice& own : scratch.choices) able = able && (!own.draws.any() || own.prepare_races());
        return able;
    }

    // Emit a token of every row, and keep the states that the pass has given.
    void emit() {
        for (int64_t r = 0; unfinished && r < args.rows; ++r)
            unfinished = scratch.choices[r].write(args.row[r].token + args.cycles + 1) == 1;
        if (!unfinished) return;
        const int64_t hidden = net.hidden;
        for (int64_t i = 0; i < pass_args.last; ++i)
            for (int64_t r = 0; args.inputs.features[i] && r < args.rows; ++r)
                std::copy_n(&scratch.outputs[i][r * hidden], hidden,
                            args.inputs.features[i] + (args.row[r].row + args.row[r].place + args.cycles) * hidden);
        args.seconds[args.cycles++] = std::chrono::duration<double>(Clock::now() - began).count();
        unfinished = args.cycles < args.most;
        for (int64_t r = 0; r < args.rows; ++r) {
            const int64_t* token = args.row[r].token + args.cycles;
            scratch.choices[r].shaper.commit(token, 1);
            unfinished = unfinished && !args.row[r].draws.ends(*token);
        }
    }
};

void run_rows(void* data) {
    RowsRun& run = *static_cast<RowsRun*>(data);
    const int number = run.arrived.fetch_add(1), threads = run.team_size();
    const auto alone = [&](auto f) {  // one thread, while the others wait
        run.barrier.wait(threads);
        if (number == 0) f();
        run.barrier.wait(threads);
    };
    using choice::Choice;
    const auto all = [](const Choice&) { return true; };
    const auto samples = [](const Choice& own) { return own.draws.any(); };
    while (run.unfinished) {
        alone([&] { run.score(); });
        decoder::run_layers(*run.pass);
        run.barrier.wait(threads);
        run.each(number, all, [](Choice& own, int n) { own.find_leaders(n); });
        run.barrier.wait(threads);
        if (run.shapes) {
            run.each(number, [](const Choice& own) { return own.shaper.active(); }, [](Choice& own, int n) { own.shape(n); });
            run.barrier.wait(threads);
        }
        if (run.limits) {
            run.each(number, [](const Choice& own) { return own.limits_logits(); }, [](Choice& own, int n) { own.limit(n); });
            run.barrier.wait(threads);
        }
        if (run.samples) {
            run.each(number, samples, [](Choice& own, int n) { own.weigh(n); });
            run.barrier.wait(threads);
            if (run.truncates)
                run.each(number, [](const Choice& own) { return own.truncates(); }, [](Choice& own, int n) { own.truncate(n); });
            alone([&] { run.unfinished = run.prepare_races(); });
            if (run.unfinished) run.each(number, samples, [](Choice& own, int n) { own.race(n); });
        }
        alone([&] { run.emit(); });
    }
}

}  // namespace

extern "C" void slipstream_rows_run(const decoder::Network* net, const decoder::PassArgs* given, RowsArgs* args,
                                    unsigned threads, decoder::Parallel parallel, decoder::TeamSize team_size) {
    static thread_local RowsScratch scratch;
    args->cycles = 0;
    RowsRun run{*net, *given, *args, scratch, threads, decoder::team_size_of(threads, team_size)};
    run.prepare();
    decoder::run_team(parallel, threads, run_rows, &run);
}
