// One pass over the layers of a decoder, for the kernels that run passes: decoder.cpp defines it, others use it too.
//
// A team of threads runs a pass together. One thread makes the pass and schedules it, then every thread calls
// `run_layers`. A pass can be scheduled and run again with other arguments, as long as it gets no more tokens.

#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "../products/matrix.hpp"

#define WITHIN_LIBRARY __attribute__((visibility("hidden")))  // called directly, never through the linker's table

namespace decoder {

// One layer; laid out as `_Layer` in decoder.py. A skipped attention or MLP block has null for all of its matrices.
struct Layer {
    const linear::Matrix *query, *key, *value, *output, *gate, *up, *down;
    const float *attention_norm, *mlp_norm;  // weights of the norms before attention and before gate and up
    const float* second_norm;                // and of the second input; null: the layer has only one input
    const float *query_norm, *key_norm;      // and of each head's query and key; null: these are not normalised
};

// The model; laid out as `_Network` in decoder.py.
struct Network {
    const Layer* layers;
    const float* norm;
    const linear::Matrix* head;
    int64_t hidden, inner, heads, kv_heads, dim;
    float epsilon, scale;
};

// What one pass reads and writes, by layer where there are two stars; laid out as `_PassArgs` in decoder.py.
struct PassArgs {
    float* hidden;           // [tokens, hidden] what the first layer reads; in the end what the last one gave
    const float* second;     // [tokens, hidden] the second input of layers that have one
    const float *cos, *sin;  // [tokens, rotated]
    float *const *keys, *const *values;  // [rows, kv_heads, places, dim]; steps of rows and heads in places
    const uint8_t* const* mask;          // [tokens, used] which places a token sees, or null for all
    float* const* features;              // [tokens, hidden] a copy of what the layer gave, or null
    const int64_t *row, *place;          // [tokens] where each token's keys and values go
    const int64_t* scored;               // [slots] tokens whose logits are wanted
    float* logits;                       // [slots, vocabulary]
    int64_t tokens, slots, rotated, row_step, head_step, used, first, last;
    int64_t keys_only;  // whether only keys and values are wanted: each layer's, from the input of the first
};

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel
using TeamSize = int (*)();                                             // omp_get_num_threads

constexpr int SPINS = 2000;  // polls of a barrier before the thread offers its core to another

// A barrier for a team of threads.
struct Barrier {
    std::atomic<int> arrived{0}, round{0};

    void wait(int threads) {
        const int now = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round.load(std::memory_order_acquire) == now; ++spins)
            if (spins > SPINS) sched_yield();
    }
};

// Numbered pieces of work; each goes to the thread that asks next.
struct WorkQueue {
    std::atomic<int64_t> next{0};

    template <class F>
    void share(int64_t pieces, F f) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) f(i);
    }
};

struct Pass;
struct PassDeleter {
    WITHIN_LIBRARY void operator()(Pass* pass) const;
};

// A pass with room for `args.tokens` tokens. It keeps references to its arguments, and uses memory that the calling thread
// keeps from call to call: a thread has one pass at a time.
WITHIN_LIBRARY std::unique_ptr<Pass, PassDeleter> make_pass(const Network& net, const PassArgs& args, unsigned threads,
                                                            TeamSize team_size);

// Divide the work of the next run; no thread may be running the pass.
WITHIN_LIBRARY void schedule(Pass& pass);

// Run the scheduled pass; every thread of the team calls it.
WITHIN_LIBRARY void run_layers(Pass& pass);

// A product of a few rows by a matrix, y [rows, out]. It uses memory that the calling thread keeps from call to call: a thread
// has one such product at a time.
struct RowProduct;
struct RowProductDeleter {
    WITHIN_LIBRARY void operator()(RowProduct* product) const;
};
WITHIN_LIBRARY std::unique_ptr<RowProduct, RowProductDeleter> make_row_product(const linear::Matrix& matrix, const float* x,
                                                                               float* y, int64_t rows, unsigned threads);

// Compute it; every thread of the team calls it.
WITHIN_LIBRARY void run_row_product(RowProduct& product);

// The function that tells the threads of `run_team` how many they are.
inline TeamSize team_size_of(unsigned threads, TeamSize team_size) {
    return threads > 1 ? team_size : [] { return 1; };
}

inline void run_team(Parallel parallel, unsigned threads, void (*function)(void*), void* data) {
    if (threads > 1) parallel(function, data, threads, 0);
    else function(data);
}

}  // namespace decoder
