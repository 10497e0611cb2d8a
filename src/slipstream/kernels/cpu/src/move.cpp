// Entries of a cache go to other places of their rows, in every layer at once: an accepted path of a tree lies scattered
// among the nodes that were rejected, a few entries in each of dozens of tensors.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// [rows, heads, places], lines of so many bytes; laid out as in cpu_move.py.
struct Rectangle {
    char* data;
    int64_t heads, places, bytes;
};

// One entry: its row, where it lies, and where it shall.
struct Move {
    int64_t row, source, target;
};

}  // namespace

// All entries of a head are read before the first of them is written: one's target may be another's source.
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
