// Drafts of a head, all rows side by side, in one call: chains, and best-first trees where candidates are chosen. What they
// must equal is `drafters/grow.py`. Part of decoder.cpp.
//
// A row's candidates stand in one pool, in the order in which they are looked at: the likeliest few after the committed
// end, then, level by level, the likeliest few after each node that was opened. The likeliest of a level that are among the
// likeliest of the pool are opened next; in the end the likeliest of the pool are the draft. Weights only fall along a path
// and of equal ones the earlier counts more, so ancestors are always among them.
//
// Where draft and target race on one field of noise at a position, a token's probability is that of winning given the noise:
// in proportion to e^(logit / heat) / E, E being the exponential of its place in the field. A chain is a tree of width 1, of
// likeliest tokens, or of tokens that are drawn, whose laws are then told.

// How candidates come about; numbered as in cpu_draft.py. LIKELY: the likeliest. RACED: the likeliest to win. SURE: the
// likeliest, and how likely it is does not matter. DRAWN: by a race.
enum How : int64_t { LIKELY, RACED, SURE, DRAWN };

// What rows want and what they get; laid out as in cpu_draft.py.
struct Grove {
    const float *embedding, *cos, *sin;  // of every token, and of every place
    const int64_t* ids;                  // the tokens that logits are of
    const float *state, *logits;         // [rows, hidden], [rows, vocabulary] at the committed ends
    const int64_t *row, *start;          // [rows] where each lies in the cache, and the place of its first drafted slot
    const int64_t *depth, *width, *nodes;
    const double *floor, *heat;       // what the likeliest token must reach for anything to follow; the temperature
    const int64_t *ends, *ends_from;  // tokens that nothing follows, row after row; where each row's begin, and the end
    int64_t *token, *parent, *count;  // [rows, most] the draft, parents numbered within the row; [rows] its nodes
    float* chance;                    // [rows, most] of each token after its parent
    float* law;                       // [rows, levels, vocabulary] what tokens were drawn from, where they are
    const int64_t* key;               // [rows, levels] of the noise at the next positions, where something is drawn or raced
    int64_t rows, most, levels, how;
};

struct Candidate {
    int64_t token, parent, place;  // place in the cache, -1: it was not opened
    float chance;
    double weight;  // the probability of its path
};

// One row's candidates.
struct Pool {
    std::vector<Candidate> all;
    std::vector<int64_t> order, level, top;
    int64_t fresh, opened;  // candidates of earlier levels; nodes that were opened

    bool ahead(int64_t a, int64_t b) const {
        return all[a].weight > all[b].weight || (all[a].weight == all[b].weight && a < b);
    }
    // The likeliest `count` of some candidates, in the order of the pool.
    void best(std::vector<int64_t>& some, int64_t count) const {
        if (count < static_cast<int64_t>(some.size())) {
            std::nth_element(some.begin(), some.begin() + count, some.end(), [&](int64_t a, int64_t b) { return ahead(a, b); });
            some.resize(count);
        }
        std::sort(some.begin(), some.end());
    }
    void sift(int64_t nodes) {
        top.resize(all.size());
        for (size_t i = 0; i < top.size(); ++i) top[i] = i;
        best(top, nodes);
    }
};

// A slot whose successors are looked at: its row, and its node there, -1 for the committed end.
struct Slot {
    int64_t row, node, parent;  // the slot of the level before that it follows
};

// What a thread keeps from call to call.
struct Wood {
    std::vector<Pool> pools;
    std::vector<Slot> slots, next;
    std::vector<float> state[2], beside, cos, sin, logits, chance, peak;
    std::vector<int64_t> row, place, kept, who, start;
    std::vector<uint8_t> seen;
    std::vector<const uint8_t*> masks;
};

// Whether any of four lines of numbers is above a bound.
inline bool above(const float* x, Floats bound) {
    constexpr int L = attention::LANES;
    const auto any = (load(x) > bound) | (load(x + L) > bound) | (load(x + 2 * L) > bound) | (load(x + 3 * L) > bound);
    uint64_t words[sizeof any / 8], all = 0;
    std::memcpy(words, &any, sizeof any);
    for (uint64_t word : words) all |= word;
    return all != 0;
}

// The `count` largest of n numbers, largest first, of equal ones the first; fewer where some are none.
int64_t largest(const float* x, int64_t n, int64_t count, float* value, int64_t* who) {
    constexpr int64_t STEP = 4 * attention::LANES;
    int64_t found = 0;
    float least = -std::numeric_limits<float>::infinity();
    const auto look = [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
            if (!(x[i] > least)) continue;
            int64_t at = found < count ? found++ : count - 1;
            for (; at > 0 && x[i] > value[at - 1]; --at) value[at] = value[at - 1], who[at] = who[at - 1];
            value[at] = x[i], who[at] = i;
            if (found == count) least = value[count - 1];
        }
    };
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
        if (above(x + i, Floats{} + least)) look(i, i + STEP);
    look(i, n);
    return found;
}

// The sum of e^((x - best) / heat), and these themselves if they are wanted; many small numbers are summed in few bits only a
// while.
double mass(const float* x, int64_t n, float best, float heat, float* each = nullptr) {
    constexpr int64_t WHILE = 64 * attention::LANES;
    double all = 0;
    for (int64_t from = 0; from < n; from += WHILE) {
        const int64_t to = std::min(n, from + WHILE);
        Floats sum = {};
        int64_t i = from;
        for (; i + attention::LANES <= to; i += attention::LANES) {
            const Floats line = attention::exponential((load(x + i) - best) / heat);
            if (each) store(each + i, line);
            sum += line;
        }
        all += attention::total(sum);
        for (; i < to; ++i) {
            const float one = std::exp((x[i] - best) / heat);
            if (each) each[i] = one;
            all += one;
        }
    }
    return all;
}

// The natural logarithm of positive numbers that are not tiny, to about one unit in the last place.
inline Floats logarithm(Floats x) {
    using attention::Words;
    const Words bits = (Words)x, shifted = bits - 0x3f3504f3;  // what is left lies between the roots of 1/2 and 2
    const Words power = shifted >> 23;
    const Floats rest = (Floats)(bits - (power << 23)) - 1.0f, square = rest * rest;
    Floats p = rest * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * rest + 1.1676998740e-1f;
    p = p * rest - 1.2420140846e-1f;
    p = p * rest + 1.4249322787e-1f;
    p = p * rest - 1.6668057665e-1f;
    p = p * rest + 2.0000714765e-1f;
    p = p * rest - 2.4999993993e-1f;
    p = p * rest + 3.3333331174e-1f;
    const Floats n = __builtin_convertvector(power, Floats);
    return n * 0.693359375f + (rest + (p * square * rest - 0.5f * square - n * 2.12194440e-4f));
}

// e^((x - best) / heat) / E for every token, E by the logarithm of u with the rounding of u near 1 made good.
void odds(const float* x, const int64_t* ids, int64_t n, float best, float heat, uint64_t key, float* y) {
    constexpr int L = attention::LANES;
    const uint64_t mixed = noise::mix(key);
    for (int64_t i = 0; i < n; i += L) {
        const int count = static_cast<int>(std::min<int64_t>(L, n - i));
        Floats own = Floats{} - std::numeric_limits<float>::infinity(), u = Floats{} + 0.5f, rest = u;
        for (int j = 0; j < count; ++j) {
            const double exact = noise::uniform(mixed, static_cast<uint64_t>(ids[i + j]));
            u[j] = static_cast<float>(exact), rest[j] = static_cast<float>(1 - exact), own[j] = x[i + j];
        }
        const Floats one = Floats{} + 1.0f, gap = one - u;
        const attention::Words near = gap < one * 1e-7f;
        const Floats safe = (Floats)(((attention::Words)one & near) | ((attention::Words)gap & ~near));
        const Floats less = Floats{} - logarithm(u) * (rest / safe);
        const Floats wait = (Floats)(((attention::Words)rest & near) | ((attention::Words)less & ~near));
        const Floats line = attention::exponential((own - best) / heat) / wait;
        std::memcpy(y + i, &line, count * sizeof(float));
    }
}

struct Growth {
    Pass& pass;
    Call& call;
    Grove& grove;
    Wood& wood;
    unsigned threads;
    int64_t widest, vocab;
    const float* logits;
    int64_t level = 0;
    bool going = true;
    Heap ranks;
    std::atomic<int> arrived{0};

    // Candidates after one slot and their probabilities.
    void rank(int64_t slot) {
        const int64_t r = wood.slots[slot].row, count = std::min(vocab, grove.width[r]);
        float* chance = wood.chance.data() + slot * widest;
        int64_t* who = wood.who.data() + slot * widest;
        const float *x = logits + slot * vocab, heat = static_cast<float>(grove.heat[r]);
        std::fill(chance, chance + widest, 0.0f);
        wood.peak[slot] = 0;
        if (!largest(x, vocab, 1, chance, who)) return;
        const float best = chance[0];
        const int64_t line = r * grove.levels + level;
        if (grove.how == LIKELY) likely(x, best, heat, count, chance, who);
        if (grove.how == RACED) raced(x, best, heat, count, grove.key[line], chance, who);
        if (grove.how == SURE) chance[0] = 1;
        wood.peak[slot] = chance[0];
        if (grove.how == DRAWN) wood.peak[slot] = drawn(x, best, heat, grove.key[line], grove.law + line * vocab, chance, who);
    }

    void likely(const float* x, float best, float heat, int64_t count, float* chance, int64_t* who) const {
        const int64_t found = largest(x, vocab, count, chance, who);
        const float total = static_cast<float>(mass(x, vocab, best, heat));
        for (int64_t k = 0; k < found; ++k) chance[k] = std::exp((chance[k] - best) / heat) / total;
    }

    // On the noise of the position.
    void raced(const float* x, float best, float heat, int64_t count, int64_t key, float* chance, int64_t* who) const {
        static thread_local std::vector<float> room;
        room.resize(vocab);
        odds(x, grove.ids, vocab, best, heat, static_cast<uint64_t>(key), room.data());
        const int64_t found = largest(room.data(), vocab, count, chance, who);
        double total = 0;
        for (float one : room) total += one;
        for (int64_t k = 0; k < found; ++k) chance[k] /= static_cast<float>(total);
    }

    // One token from the law, which is written down; the largest probability of that. None where the law holds NaN.
    float drawn(const float* x, float best, float heat, int64_t key, float* law, float* chance, int64_t* who) const {
        const float total = static_cast<float>(mass(x, vocab, best, heat, law));
        for (int64_t i = 0; i < vocab; ++i) law[i] /= total;
        const int64_t first = noise::winner(static_cast<uint64_t>(key), grove.ids, law, vocab);
        if (first < 0) return chance[0] = 0;
        who[0] = first;
        chance[0] = law[first];
        return 1 / total;
    }

    bool ends(int64_t r, int64_t token) const {
        const int64_t *from = grove.ends + grove.ends_from[r], *to = grove.ends + grove.ends_from[r + 1];
        return std::find(from, to, token) != to;
    }

    // What follows the slots of this level joins the pools; the slots of the next.
    void grow() {
        for (size_t i = 0; i < wood.slots.size(); ++i) {
            const Slot slot = wood.slots[i];
            Pool& pool = wood.pools[slot.row];
            const float* chance = wood.chance.data() + i * widest;
            const double before = slot.node < 0 ? 1.0 : pool.all[slot.node].weight;
            if (wood.peak[i] < grove.floor[slot.row]) continue;
            for (int64_t k = 0; k < std::min(widest, grove.width[slot.row]) && chance[k] > 0; ++k) {
                const float own = std::min(1.0f, chance[k]);
                pool.all.push_back({grove.ids[wood.who[i * widest + k]], slot.node, -1, own, before * own});
            }
        }
        ++level;
        wood.next.clear();
        size_t first = 0;
        for (int64_t r = 0; r < grove.rows; ++r) {
            Pool& pool = wood.pools[r];
            while (first < wood.slots.size() && wood.slots[first].row < r) ++first;
            if (level < grove.depth[r]) open(pool, r, first);
            pool.fresh = pool.all.size();
        }
        wood.slots.swap(wood.next);
        going = !wood.slots.empty();
    }

    // Of what a row was given on this level, the likeliest that are among the likeliest of all.
    void open(Pool& pool, int64_t r, size_t first) {
        const int64_t size = pool.all.size();
        pool.level.clear();
        for (int64_t i = pool.fresh; i < size; ++i)
            if (!ends(r, pool.all[i].token)) pool.level.push_back(i);
        if (pool.level.empty()) return;
        pool.best(pool.level, grove.width[r]);
        pool.sift(grove.nodes[r]);
        for (int64_t node : pool.level) {
            if (!std::binary_search(pool.top.begin(), pool.top.end(), node)) continue;
            while (wood.slots[first].node != pool.all[node].parent) ++first;
            pool.all[node].place = grove.start[r] + pool.opened++;
            wood.next.push_back({r, node, static_cast<int64_t>(first)});
        }
    }

    // The slots of a level as tokens of a pass; nobody may be at it.
    void lay() {
        const int64_t n = wood.slots.size(), hidden = pass.net.hidden, turned = call.turned;
        const float* from = level == 1 ? grove.state : wood.state[level % 2].data();
        float* to = wood.state[(level + 1) % 2].data();
        call.used = 0;
        for (const Slot& slot : wood.slots) call.used = std::max(call.used, wood.pools[slot.row].all[slot.node].place + 1);
        wood.seen.assign(n * call.used, 0);
        for (int64_t i = 0; i < n; ++i) {
            const Slot slot = wood.slots[i];
            const Pool& pool = wood.pools[slot.row];
            const int64_t start = grove.start[slot.row], position = start + level - 1;
            const auto copy = [&](std::vector<float>& line, const float* of, int64_t size) {
                std::memcpy(line.data() + i * size, of, size * sizeof(float));
            };
            std::memcpy(to + i * hidden, from + slot.parent * hidden, hidden * sizeof(float));
            copy(wood.beside, grove.embedding + pool.all[slot.node].token * hidden, hidden);
            copy(wood.cos, grove.cos + position * turned, turned);
            copy(wood.sin, grove.sin + position * turned, turned);
            wood.row[i] = grove.row[slot.row], wood.place[i] = pool.all[slot.node].place, wood.kept[i] = i;
            uint8_t* seen = wood.seen.data() + i * call.used;
            std::memset(seen, 1, start);
            for (int64_t node = slot.node; node >= 0; node = pool.all[node].parent) seen[pool.all[node].place] = 1;
        }
        std::fill(wood.masks.begin(), wood.masks.end(), wood.seen.data());
        call.hidden = to, call.tokens = call.slots = n;
        attention::runs(call.row, n, wood.start);
        cut(pass, wood.start, threads);
        logits = call.logits;
        ranks.next = 0;
    }

    // The likeliest of each pool, as far as its row wants them.
    void gather() {
        for (int64_t r = 0; r < grove.rows; ++r) {
            Pool& pool = wood.pools[r];
            pool.sift(grove.nodes[r]);
            pool.order.assign(pool.all.size(), -1);
            for (size_t n = 0; n < pool.top.size(); ++n) {
                const Candidate& own = pool.all[pool.top[n]];
                const int64_t to = r * grove.most + n;
                pool.order[pool.top[n]] = n;
                grove.token[to] = own.token, grove.chance[to] = own.chance;
                grove.parent[to] = own.parent < 0 ? -1 : pool.order[own.parent];
            }
            grove.count[r] = pool.top.size();
        }
    }
};

void grow(void* data) {
    Growth& own = *static_cast<Growth*>(data);
    const bool leads = own.arrived.fetch_add(1) == 0;
    const int threads = own.pass.count();
    Team& team = own.pass.team;
    while (true) {
        team.wait(threads);
        own.ranks.share(own.wood.slots.size(), [&](int64_t i) { own.rank(i); });
        team.wait(threads);
        if (leads) {
            own.grow();
            if (own.going) own.lay();
        }
        team.wait(threads);
        if (!own.going) break;
        perform(&own.pass);
    }
    if (leads) own.gather();
}

// Room for the widest level; the committed ends are the first.
int64_t clear(Wood& wood, const Grove& grove, const Net& net, const Call& call) {
    int64_t slots = 0, widest = 1;
    wood.pools.resize(grove.rows);
    wood.slots.clear();
    for (int64_t r = 0; r < grove.rows; ++r) {
        Pool& pool = wood.pools[r];
        pool.all.clear(), pool.fresh = pool.opened = 0;
        if (grove.depth[r] > 0) wood.slots.push_back({r, -1, 0});
        slots += grove.width[r], widest = std::max(widest, grove.width[r]);
    }
    for (auto& state : wood.state) state.resize(slots * net.hidden);
    wood.beside.resize(slots * net.hidden), wood.logits.resize(slots * net.head->out);
    wood.cos.resize(slots * call.turned), wood.sin.resize(slots * call.turned);
    wood.chance.resize(slots * widest), wood.who.resize(slots * widest), wood.peak.resize(slots);
    wood.row.resize(slots), wood.place.resize(slots), wood.kept.resize(slots);
    wood.masks.resize(call.last);
    return slots;
}
