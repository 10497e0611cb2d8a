// Moves cache entries to other places of their rows, in all layers. The accepted path of a tree lies scattered among rejected
// nodes: a few entries in each of dozens of tensors.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// A tensor [rows, heads, places] with lines of `bytes` bytes, and the places from one row, and from one head, to the
// next; laid out as `_CacheTensor` in move.py.
struct CacheTensor {
    char* data;
    int64_t heads, row_step, head_step, bytes;
};

// One entry: its row, source place and target place.
struct Move {
    int64_t row, source, target;
};

}  // namespace

// All entries of a head are read before the first is written, because a target may be the source of another entry.
extern "C" void slipstream_move(const CacheTensor* tensors, int64_t count, const Move* moves, int64_t entries) {
    static thread_local std::vector<char> held;
    for (int64_t i = 0; i < count; ++i) {
        const CacheTensor& own = tensors[i];
        held.resize(entries * own.bytes);
        for (int64_t head = 0; head < own.heads; ++head) {
            const auto line = [&](int64_t row, int64_t place) {
                return own.data + (row * own.row_step + head * own.head_step + place) * own.bytes;
            };
            for (int64_t n = 0; n < entries; ++n)
                std::memcpy(held.data() + n * own.bytes, line(moves[n].row, moves[n].source), own.bytes);
            for (int64_t n = 0; n < entries; ++n)
                std::memcpy(line(moves[n].row, moves[n].target), held.data() + n * own.bytes, own.bytes);
        }
    }
}
