// Moves cache entries to other places of their rows, in all layers. The accepted path of a tree lies scattered among rejected
// nodes: a few entries in each of dozens of tensors.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// A tensor [rows, heads, places] with lines of `bytes` bytes; laid out as `_CacheTensor` in move.py.
struct Rectangle {
    char* data;
    int64_t heads, places, bytes;
};

// One entry: its row, source place and target place.
struct Move {
    int64_t row, source, target;
};

}  // namespace

// All entries of a head are read before the first is written, because a target may be the source of another entry.
extern "C" void slipstream_move(const Rectangle* rectangles, int64_t count, const Move* moves, int64_t entries) {
    static thread_local std::vector<char> held;
    for (int64_t i = 0; i < count; ++i) {
        const Rectangle& own = rectangles[i];
        held.resize(entries * own.bytes);
        for (int64_t head = 0; head < own.heads; ++head) {
            const auto line = [&](int64_t row, int64_t place) {
                return own.data + ((row * own.heads + head) * own.places + place) * own.bytes;
            };
            for (int64_t n = 0; n < entries; ++n)
                std::memcpy(held.data() + n * own.bytes, line(moves[n].row, moves[n].source), own.bytes);
            for (int64_t n = 0; n < entries; ++n)
                std::memcpy(line(moves[n].row, moves[n].target), held.data() + n * own.bytes, own.bytes);
        }
    }
}
