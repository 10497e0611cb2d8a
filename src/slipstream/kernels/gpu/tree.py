"""Grows a tree of drafted tokens on the device.

A row's candidates are in one pool: the most probable tokens after the committed end, then, level by level, those
after each opened node. The weight of a candidate is the log-probability of its path. The most probable candidates of
a level are opened next. In the end the most probable candidates of the pool form the draft. Weights never grow along
a path, and of equal weights the earlier candidate counts more, so the ancestors of a drafted node are drafted, too.

If the rule uses the noise of a position (`coupled`), the candidates are those that finish first in the draft's race:
the largest values of logit / temperature - log E. A softmax of these numbers gives their law, so one kernel serves
both cases.

Shapes: rows R; candidates after a slot W; levels D; pool C = W + (D - 1) W W; opened nodes of a level R W.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu.attention import WORDS, Layout
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.noise import FIELD, fold, key_of, uniform
from slipstream.kernels.gpu.sample import SamplingInputs

SOME = 64  # candidates of a program


@triton.jit(do_not_specialize=["level"])
def _rank(
    logits, vocab, temperature, stream, start, ids, level, high, mass, worth, who,
    WIDTH: tl.constexpr, OPEN: tl.constexpr, RACE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One block of a slot's draft vocabulary: its largest number, the sum of the weights relative to it, and its WIDTH
    largest numbers. NaN counts as impossible."""
    if EARLY:
        wait()
    slot, block = tl.program_id(0), tl.program_id(1)
    row = slot // OPEN
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    x = tl.load(logits + slot.to(tl.int64) * vocab + at, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x < float("inf"), x, float("-inf"))
    warm = tl.load(temperature + row)
    x = x / tl.where(warm > 0, warm, 1.0)
    if RACE:
        begin = tl.load(start + row)
        key = key_of(tl.load(stream + row), begin + level, begin * 0, FIELD)
        name = tl.load(ids + at, mask=inside, other=0)
        x -= tl.log(-tl.log(uniform(fold(key, name)))).to(tl.float32)
    line = slot * tl.num_programs(1) + block
    best = tl.max(x, 0)
    safe = tl.where(best == float("-inf"), 0.0, best)
    tl.store(high + line, best)
    tl.store(mass + line, tl.sum(tl.exp(x - safe), 0))
    for k in tl.static_range(WIDTH):
        top = tl.max(x, 0)
        first = tl.min(tl.where(x == top, at, vocab), 0)
        tl.store(worth + line * WIDTH + k, top)
        tl.store(who + line * WIDTH + k, tl.minimum(first, vocab - 1))
        x = tl.where(at == first, float("-inf"), x)


@triton.jit(do_not_specialize=["level", "offset", "pool"])
def _merge(
    high, mass, worth, who, ids, blocks, level, offset, pool, depth, width, stop, before, after,
    token, parent, weight,
    WIDTH: tl.constexpr, OPEN: tl.constexpr, FIRST: tl.constexpr, BLOCKS: tl.constexpr, CANDIDATES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Combine the blocks of a slot: its WIDTH most probable tokens are added to the pool, as far as its row's budget
    allows."""
    if EARLY:
        wait()
    slot = tl.program_id(0)
    row, mine = slot // OPEN, slot % OPEN
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    each = tl.load(high + slot * blocks + index, mask=there, other=float("-inf"))
    top = tl.max(each, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.load(mass + slot * blocks + index, mask=there, other=0.0) * tl.exp(each - safe), 0)
    whole = safe + tl.log(tl.where(total > 0, total, 1.0))
    at = tl.arange(0, CANDIDATES)
    inside = at < blocks * WIDTH
    value = tl.load(worth + slot * blocks * WIDTH + at, mask=inside, other=float("-inf"))
    name = tl.load(who + slot * blocks * WIDTH + at, mask=inside, other=1 << 30)
    path = tl.zeros((), tl.float32)
    node = tl.full((), -1, tl.int64)
    if not FIRST:
        path = tl.load(before + slot)
        node = tl.load(after + slot)
    wanted = tl.load(width + row)
    going = (level < tl.load(depth + row)) & (tl.exp(top - whole) >= tl.load(stop + row))
    for k in tl.static_range(WIDTH):
        best = tl.max(value, 0)
        first = tl.min(tl.where(value == best, name, 1 << 30), 0)
        value = tl.where(name == first, float("-inf"), value)
        joint = tl.where(going & (k < wanted), path + (best - whole), float("-inf"))
        line = row * pool + offset + mine * WIDTH + k
        tl.store(token + line, tl.load(ids + first))
        tl.store(parent + line, node)
        tl.store(weight + line, joint)


@triton.jit(do_not_specialize=["level", "offset", "pool", "size"])
def _open(
    token, weight, pool, offset, size, level, start, depth, width, owner, earlier,
    node, path, word, source, position, row, place, limit, base, bits, count,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, WORDS: tl.constexpr, USED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Make the most probable nodes of a level slots of the head, in the order of the pool: their tokens, their places,
    and the earlier slots that they see."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    at = tl.arange(0, SIZE)
    w = tl.load(weight + r * pool + offset + at, mask=at < size, other=float("-inf"))
    ahead = (w[None, :] > w[:, None]) | ((w[None, :] == w[:, None]) & (at[None, :] < at[:, None]))
    rank = tl.sum(ahead.to(tl.int32), 1)
    wanted = tl.where(level + 1 < tl.load(depth + r), tl.load(width + r), 0)
    picked = (w > float("-inf")) & (rank < wanted)
    number = tl.cumsum(picked.to(tl.int32), 0) - 1
    opened = tl.sum(picked.to(tl.int32), 0)
    begin, mine = tl.load(start + r), tl.load(owner + r)
    line = r * WIDTH + number
    slot = level * WIDTH + number  # of the draft's slots, which follow those of the committed text
    tl.store(node + line, (offset + at).to(tl.int64), mask=picked)
    tl.store(path + line, w, mask=picked)
    tl.store(word + line, tl.load(token + r * pool + offset + at, mask=picked, other=0), mask=picked)
    before = r * WIDTH + at // WIDTH
    tl.store(source + line, (at * 0 + r if FIRST else before).to(tl.int64), mask=picked)
    tl.store(position + line, begin - 1 + level + at * 0, mask=picked)
    tl.store(place + line, begin - 1 + slot, mask=picked)
    tl.store(limit + line, begin - 1 + at * 0, mask=picked)
    tl.store(base + line, begin - 1 + at * 0, mask=picked)
    for n in tl.static_range(USED):
        seen = tl.where(slot // 64 == n, tl.full((), 1, tl.int64) << (slot % 64).to(tl.int64), 0)
        if not FIRST:
            seen = seen | tl.load(earlier + before * WORDS + n, mask=picked, other=0)
        tl.store(bits + line * WORDS + n, seen, mask=picked)
    rest = tl.arange(0, WIDE)
    free = (rest >= opened) & (rest < WIDTH)
    line = r * WIDTH + rest
    nothing = (rest * 0).to(tl.int64)
    tl.store(path + line, nothing.to(tl.float32) - float("inf"), mask=free)
    tl.store(node + line, nothing, mask=free)
    tl.store(word + line, nothing, mask=free)
    tl.store(source + line, nothing + (r if FIRST else r * WIDTH), mask=free)
    tl.store(position + line, nothing, mask=free)
    tl.store(place + line, nothing - 1, mask=free)
    tl.store(limit + line, nothing, mask=free)
    tl.store(row + line, nothing + mine, mask=rest < WIDTH)
    for c in tl.static_range(CHUNKS):
        tl.store(count + r * CHUNKS + c, tl.minimum(tl.maximum(opened - c * CHUNK, 0), CHUNK).to(tl.int64))


@triton.jit(do_not_specialize=["pool"])
def _sift(weight, nodes, pool, kept, SOME: tl.constexpr, EARLY: tl.constexpr):
    """Which candidates are among the most probable of their row."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    at = tl.program_id(1) * SOME + tl.arange(0, SOME)
    w = tl.load(weight + r * pool + at, mask=at < pool, other=float("-inf"))
    rank = tl.zeros((SOME,), tl.int32)
    for begin in range(0, pool, SOME):
        other = begin + tl.arange(0, SOME)
        v = tl.load(weight + r * pool + other, mask=other < pool, other=float("-inf"))
        ahead = (v[None, :] > w[:, None]) | ((v[None, :] == w[:, None]) & (other[None, :] < at[:, None]))
        rank += tl.sum(ahead.to(tl.int32), 1)
    picked = (w > float("-inf")) & (rank < tl.load(nodes + r))
    tl.store(kept + r * pool + at, picked.to(tl.int32), mask=at < pool)


@triton.jit(do_not_specialize=["pool"])
def _number(kept, pool, total, POOL: tl.constexpr, EARLY: tl.constexpr):
    """Number the kept candidates in the order of the pool; -1 for the others."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    at = tl.arange(0, POOL)
    picked = tl.load(kept + r * pool + at, mask=at < pool, other=0)
    number = tl.cumsum(picked, 0) - 1
    tl.store(kept + r * pool + at, tl.where(picked > 0, number, -1), mask=at < pool)
    tl.store(total + r, tl.sum(picked, 0).to(tl.int64))


@triton.jit(do_not_specialize=["pool", "levels"])
def _plant(
    kept, total, candidate, above, pool, levels, start, depth, owner, last,
    token, parent, far, position, row, place, limit, base, bits, count,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, SOME: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    WORDS: tl.constexpr, USED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write the kept candidates as nodes of a pass: slot 0 of a row is its committed end, node n is slot n + 1."""
    if EARLY:
        wait()
    r, block = tl.program_id(0), tl.program_id(1)
    begin, mine, deep = tl.load(start + r), tl.load(owner + r), tl.load(depth + r)
    at = block * SOME + tl.arange(0, SOME)
    number = tl.load(kept + r * pool + at, mask=at < pool, other=-1)
    picked = number >= 0
    line = r * WIDTH + 1 + number
    before = tl.load(above + r * pool + at, mask=picked, other=-1)
    over = tl.load(kept + r * pool + before, mask=picked & (before >= 0), other=-1)
    for n in tl.static_range(USED):
        seen = (at * 0).to(tl.int64)
        level = (at * 0).to(tl.int64)
        climb = tl.where(picked, at, -1).to(tl.int64)
        for _step in range(levels):
            there = climb >= 0
            bit = tl.load(kept + r * pool + climb, mask=there, other=0)
            flag = tl.full((), 1, tl.int64) << (bit % 64).to(tl.int64)
            seen = seen | tl.where(there & (bit // 64 == n), flag, 0)
            level += there.to(tl.int64)
            climb = tl.load(above + r * pool + climb, mask=there, other=-1)
        tl.store(bits + line * WORDS + n, seen, mask=picked)
        if n == 0:
            tl.store(far + line, level, mask=picked)
            tl.store(position + line, begin - 1 + level, mask=picked)
    tl.store(token + line, tl.load(candidate + r * pool + at, mask=picked, other=0), mask=picked)
    tl.store(parent + line, over.to(tl.int64), mask=picked)
    tl.store(place + line, begin + number, mask=picked)
    tl.store(limit + line, begin + at * 0, mask=picked)
    tl.store(base + line, begin + at * 0, mask=picked)
    if block == 0:
        drafted = tl.load(total + r)
        rest = tl.arange(0, WIDE)
        end = rest == 0
        free = (end | (rest > drafted)) & (rest < WIDTH)
        real = end & (rest * 0 + deep >= 0)
        own = r * WIDTH + rest
        tl.store(token + own, tl.where(end, tl.load(last + r), 0), mask=free)
        tl.store(parent + own, (rest * 0 - 2).to(tl.int64), mask=free)
        tl.store(far + own, (rest * 0).to(tl.int64), mask=free)
        tl.store(position + own, tl.where(real, begin - 1, 0), mask=free)
        tl.store(place + own, tl.where(real, begin - 1, -1), mask=free)
        tl.store(limit + own, tl.where(real, begin, 0), mask=free)
        tl.store(base + own, tl.where(real, begin, 0), mask=free)
        for n in tl.static_range(USED):
            tl.store(bits + own * WORDS + n, (rest * 0).to(tl.int64), mask=free)
        tl.store(row + own, mine + (rest * 0).to(tl.int64), mask=rest < WIDTH)
        tokens = tl.where(deep >= 0, drafted + 1, 0)
        for c in tl.static_range(CHUNKS):
            tl.store(count + r * CHUNKS + c, tl.minimum(tl.maximum(tokens - c * CHUNK, 0), CHUNK))


class CandidatePool:
    """All candidates of a growing tree, the open nodes, and scratch memory for the blocks of a vocabulary. `kept`
    numbers the candidates that are in the draft."""

    def __init__(self, rows: int, width: int, depth: int, vocab: int, chunk: int, device: torch.device) -> None:
        self.rows, self.width, self.depth = rows, width, depth
        self.size = width + (depth - 1) * width * width
        self.blocks = triton.cdiv(vocab, draw.BLOCK)
        slots = rows * width

        def zeros(kind: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        self.token, self.parent = zeros(torch.long, 2, rows, self.size)
        self.weight, self.kept = zeros(torch.float32, rows, self.size), zeros(torch.int32, rows, self.size)
        self.total = zeros(torch.long, rows)
        self.high, self.mass = zeros(torch.float32, 2, slots, self.blocks)
        self.worth = zeros(torch.float32, slots, self.blocks, width)
        self.who = zeros(torch.int32, slots, self.blocks, width)
        self.node, self.word, self.source = zeros(torch.long, 3, slots)
        self.path = zeros(torch.float32, slots)
        self.layouts = [chain_layout(rows, width, chunk, device) for _ in range(depth - 1)]

    def offset(self, level: int) -> int:
        return self.width + (level - 1) * self.width * self.width if level else 0


def rank(
    pool: CandidatePool,
    level: int,
    logits: Tensor,
    ids: Tensor,
    sampling: SamplingInputs,
    control: CycleControl,
    race: bool,
) -> None:
    """Add the most probable tokens after each open slot to the pool: after the row's end, later after `pool.node`."""
    width, opened, (slots, vocab) = pool.width, pool.width if level else 1, logits.shape
    _rank[slots, pool.blocks](
        *(logits, vocab, sampling.temperature, sampling.stream, sampling.start, ids, level),
        *(pool.high, pool.mass, pool.worth, pool.who, width, opened, race, draw.BLOCK),
        **early(logits, slots),
    )
    _merge[(slots,)](
        *(pool.high, pool.mass, pool.worth, pool.who, ids, pool.blocks, level, pool.offset(level), pool.size),
        *(control.depth, control.width, sampling.stop, pool.path, pool.node, pool.token, pool.parent, pool.weight),
        *(width, opened, level == 0, triton.next_power_of_2(pool.blocks), triton.next_power_of_2(pool.blocks * width)),
        num_warps=1,
        **early(logits, slots),
    )


def open_level(pool: CandidatePool, level: int, control: CycleControl) -> Layout:
    """Open the most probable nodes of a level. Returns their layout as slots of the head. `pool.word` holds their
    tokens, `pool.source` the slot of the previous level that each follows."""
    here, width = pool.layouts[level], pool.width
    earlier = pool.layouts[max(0, level - 1)].bits
    size = width * width if level else width
    _open[(pool.rows,)](
        *(pool.token, pool.weight, pool.size, pool.offset(level), size, level),
        *(control.start, control.depth, control.width, control.head_row, earlier),
        *(pool.node, pool.path, pool.word, pool.source, here.position, here.row, here.place, here.limit, here.base),
        *(here.bits, here.count, width, level == 0, triton.next_power_of_2(size), triton.next_power_of_2(width)),
        *(here.chunk, -(-width // here.chunk), WORDS, triton.cdiv(pool.depth * width, 64)),
        num_warps=4,
        **early(pool.token, pool.rows * width),
    )
    return here


@dataclass(frozen=True, eq=False)
class PackedTree:
    """A tree as the target reads it, one line per row: slot 0 is the committed end, slot n + 1 is node n."""

    token: Tensor
    parent: Tensor  # the number of the node before; -1: the committed end; -2: no node at all
    far: Tensor  # drafted tokens up to and with this slot


def plant(pool: CandidatePool, control: CycleControl, tree: PackedTree, layout: Layout) -> None:
    """Lay out the most probable candidates as a draft for a pass, in the order of the pool."""
    (rows, width), parts, chunk = tree.token.shape, triton.cdiv(pool.size, SOME), layout.chunk
    how = early(tree.token, rows * width)
    _sift[rows, parts](pool.weight, control.nodes, pool.size, pool.kept, SOME, **how)
    _number[(rows,)](pool.kept, pool.size, pool.total, triton.next_power_of_2(pool.size), **how)
    _plant[rows, parts](
        *(pool.kept, pool.total, pool.token, pool.parent, pool.size, pool.depth, control.start, control.depth),
        *(control.row, control.last, tree.token, tree.parent, tree.far, layout.position, layout.row, layout.place),
        *(layout.limit, layout.base, layout.bits, layout.count, width, triton.next_power_of_2(width), SOME, chunk),
        *(-(-width // chunk), WORDS, triton.cdiv(width, 64)),
        **how,
    )
