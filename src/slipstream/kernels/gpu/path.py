"""The result of a tree on the device: the accepted path, its compaction in the caches, the record for the host.

`greedy` and `coupled` step from the committed end to the child that is the slot's own choice. `chosen` draws which of
the children is accepted, or none of them, and then a token that is none of them (`core.verify.tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import CycleControl
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.noise import ACCEPT, EMIT, fold, key_of, uniform
from slipstream.kernels.gpu.sample import LawBuffers, SamplingInputs
from slipstream.kernels.gpu.tree import PackedTree
from slipstream.kernels.gpu.verify import VerdictTensors, settle


@triton.jit
def _lawful(best, slot):
    high = tl.load(best + slot)
    return (high == high) & (tl.abs(high) != float("inf"))


@triton.jit
def _follow(
    choice, token, parent, depth, best, accepted, next, sound, path,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, LEVELS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Step to the child whose token the slot chose, while there is one."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    slot = tl.arange(0, WIDE)
    inside = (slot > 0) & (slot < WIDTH)
    before = tl.load(parent + r * WIDTH + slot, mask=inside, other=-2)
    word = tl.load(token + r * WIDTH + slot, mask=inside, other=-1)
    going = tl.load(depth + r) >= 0
    at = r * 0
    kept = r * 0
    fine = _lawful(best, r * WIDTH)
    for n in tl.static_range(LEVELS):
        own = tl.load(choice + r * WIDTH + at)
        child = tl.min(tl.where((before == at - 1) & (word == own), slot, WIDE), 0)
        going = going & (child < WIDE)
        at = tl.where(going, child, at)
        kept += going.to(tl.int32)
        fine = fine & _lawful(best, r * WIDTH + at)
        tl.store(path + r * LEVELS + n, tl.where(going, at - 1, -1).to(tl.int64))
    tl.store(accepted + r, kept.to(tl.int64))
    tl.store(next + r, tl.load(choice + r * WIDTH + at))
    tl.store(sound + r, fine.to(tl.int64))


@triton.jit
def _offer(
    logits, vocab, token, parent, depth, best, total, temperature, stream, start, accepted, sound, path, end, shut,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, LEVELS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One draw per slot says which of its children is accepted, each with the target's own probability of it, or none.
    `shut` marks the children that the slot where it ends has rejected."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    slot = tl.arange(0, WIDE)
    inside = (slot > 0) & (slot < WIDTH)
    before = tl.load(parent + r * WIDTH + slot, mask=inside, other=-2)
    word = tl.load(token + r * WIDTH + slot, mask=inside, other=0)
    warm, begin, own = tl.load(temperature + r), tl.load(start + r), tl.load(stream + r)
    warm = tl.where(warm > 0, warm, 1.0)
    going = tl.load(depth + r) >= 0
    at = r * 0
    kept = r * 0
    fine = _lawful(best, r * WIDTH)
    for n in tl.static_range(LEVELS):
        child = before == at - 1
        first = tl.min(tl.where(child, slot, WIDE), 0)
        line = r * WIDTH + at
        x = tl.load(logits + line.to(tl.int64) * vocab + word, mask=child, other=float("-inf"))
        p = (tl.exp((x - tl.load(best + line)) / warm) / tl.load(total + line)).to(tl.float64)
        p = tl.where(child, p, 0.0)
        none = tl.maximum(1.0 - tl.sum(p, 0), 0.0)
        key = key_of(own, begin, begin * 0 + first - 1, ACCEPT)
        rank = tl.cumsum(child.to(tl.int32), 0)
        time = -tl.log(uniform(fold(key, rank.to(tl.int64)))) / tl.where(p > 0, p, 1.0)
        time = tl.where(p > 0, time, float("inf"))
        soonest = tl.min(time, 0)
        late = -tl.log(uniform(fold(key, begin * 0))) / tl.where(none > 0, none, 1.0)
        late = tl.where(none > 0, late, float("inf"))
        going = going & (first < WIDE) & (soonest < late)
        at = tl.where(going, tl.min(tl.where(child & (time == soonest), slot, WIDE - 1), 0), at)
        kept += going.to(tl.int32)
        fine = fine & _lawful(best, r * WIDTH + at)
        tl.store(path + r * LEVELS + n, tl.where(going, at - 1, -1).to(tl.int64))
    tl.store(accepted + r, kept.to(tl.int64))
    tl.store(sound + r, fine.to(tl.int64))
    tl.store(end + r, at.to(tl.int64))
    tl.store(shut + r * WIDTH + slot, tl.where(before == at - 1, word, -1), mask=slot < WIDTH)


@triton.jit
def _remain(
    logits, vocab, best, total, temperature, stream, start, accepted, end, shut, soonest, drawn,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One block of two races for the token after the path: without the rejected children, and on the whole law."""
    if EARLY:
        wait()
    r, block = tl.program_id(0), tl.program_id(1)
    warm, begin, kept = tl.load(temperature + r), tl.load(start + r), tl.load(accepted + r)
    warm = tl.where(warm > 0, warm, 1.0)
    slot = r * WIDTH + tl.load(end + r)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    x = tl.load(logits + slot.to(tl.int64) * vocab + at, mask=inside, other=float("-inf"))
    p = tl.exp((x - tl.load(best + slot)) / warm) / tl.load(total + slot)
    key = key_of(tl.load(stream + r), begin, kept, EMIT)
    noise = -tl.log(uniform(fold(key, at.to(tl.int64))))
    open = inside & (p > 0)
    whole = tl.where(open, noise / tl.where(p > 0, p, 1.0).to(tl.float64), float("inf"))
    for n in tl.static_range(1, WIDTH):
        open = open & (at != tl.load(shut + r * WIDTH + n))
    left = tl.where(open, whole, float("inf"))
    out = (r * tl.num_programs(1) + block) * 2
    first, usual = tl.min(left, 0), tl.min(whole, 0)
    tl.store(soonest + out, first)
    tl.store(drawn + out, tl.min(tl.where(left == first, at, vocab), 0))
    tl.store(soonest + out + 1, usual)
    tl.store(drawn + out + 1, tl.min(tl.where(whole == usual, at, vocab), 0))


@triton.jit(do_not_specialize=["row_step", "head_step"])
def _carry(
    lies, like, start, owner, accepted, path, row_step, head_step, size,
    LEVELS: tl.constexpr, SIZE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Move the entries of an accepted path to consecutive places, in one head of one tensor. A node never stands before
    its place, so what is read later was not written before."""
    if EARLY:
        wait()
    r, head = tl.program_id(0), tl.program_id(2)
    held = tl.load(lies + tl.program_id(1)).to(tl.pointer_type(like.dtype.element_ty))
    at = tl.arange(0, SIZE)
    inside = at < size
    kept, begin = tl.load(accepted + r), tl.load(start + r)
    own = held + tl.load(owner + r) * row_step + head * head_step + begin * size + at
    for n in tl.static_range(LEVELS):
        node = tl.load(path + r * LEVELS + n)
        if (n < kept) & (node != n):
            tl.store(own + n * size, tl.load(own + node * size, mask=inside, other=0.0), mask=inside)


@triton.jit
def _report(
    start, depth, owner, token, parent, total, accepted, next, sound, path, following, fused, position, row, place,
    limit, count, end, result, last, previous, left, goal,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, LEVELS: tl.constexpr, LONG: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """What each row committed as the next tokens a head reads, from which slots it reads the target's states, the
    record the host reads, and the row's control for the next cycle."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    begin, mine, kept = tl.load(start + r), tl.load(owner + r), tl.load(accepted + r)
    live = tl.load(depth + r) >= 0
    final = tl.load(next + r)
    n = tl.arange(0, LONG)
    inside = n <= LEVELS
    real = n <= tl.where(live, kept, -1)
    there = begin - 1 + n
    node = tl.load(path + r * LEVELS + n, mask=n < kept, other=0)
    word = tl.load(token + r * WIDTH + 1 + node, mask=n < kept, other=0)
    before = tl.load(path + r * LEVELS + n - 1, mask=(n > 0) & (n <= kept), other=-1)
    at = r * (LEVELS + 1) + n
    tl.store(following + at, tl.where(n < kept, word, final), mask=inside)
    tl.store(fused + at, r * WIDTH + 1 + before, mask=inside)
    tl.store(row + at, mine + n * 0, mask=inside)
    tl.store(position + at, tl.where(real, there, 0), mask=inside)
    tl.store(place + at, tl.where(real, there, -1), mask=inside)
    tl.store(limit + at, tl.where(real, there + 1, 0), mask=inside)
    for c in tl.static_range(CHUNKS):
        size = tl.minimum(tl.maximum(kept + 1 - c * CHUNK, 0), CHUNK)
        tl.store(count + r * CHUNKS + c, tl.where(live, size, 0))
    tl.store(end + r, r * (LEVELS + 1) + kept)
    line = result + r * (2 + 2 * WIDTH + LEVELS)
    tl.store(line, kept)
    tl.store(line + 1, final)
    tl.store(line + 2, tl.load(sound + r))
    tl.store(line + 3, tl.load(total + r))
    slot = tl.arange(0, WIDE)
    node_there = (slot > 0) & (slot < WIDTH)
    own = r * WIDTH + slot
    tl.store(line + 3 + slot, tl.load(token + own, mask=node_there, other=0), mask=node_there)
    tl.store(line + 2 + WIDTH + slot, tl.load(parent + own, mask=node_there, other=0), mask=node_there)
    steps = n < LEVELS
    path_node = tl.load(path + r * LEVELS + n, mask=steps, other=-1)
    tl.store(line + 2 + 2 * WIDTH + n, path_node, mask=steps)
    if live:
        room = tl.load(left + r) - kept - 1
        tip = tl.load(path + r * LEVELS + kept - 1, mask=kept > 0, other=-1)
        tl.store(start + r, begin + kept + 1)
        tl.store(previous + r, tl.load(token + r * WIDTH + 1 + tip))
        tl.store(last + r, final)
        tl.store(left + r, room)
        tl.store(depth + r, tl.minimum(tl.load(goal + r), room - 1))


def follow(
    choice: Tensor, tree: PackedTree, control: CycleControl, best: Tensor, outcome: VerdictTensors, path: Tensor
) -> None:
    """The verdict on rows whose slots chose so, by comparing."""
    rows, width = tree.token.shape
    _follow[(rows,)](
        *(choice, tree.token, tree.parent, control.depth, best, *outcome, path),
        *(width, triton.next_power_of_2(width), path.shape[1]),
        num_warps=1,
        **early(choice, rows * width),
    )


def offer(
    laws: LawBuffers,
    tree: PackedTree,
    control: CycleControl,
    sampling: SamplingInputs,
    room: tuple[Tensor, Tensor],
    outcome: VerdictTensors,
    path: Tensor,
) -> None:
    """The verdict of the rule `chosen`; `room` is for the slot each row ends at and the tokens it rejected there."""
    (rows, width), vocab, (kept, following, sound), (end, shut) = tree.token.shape, laws.logits.shape[1], outcome, room
    how = early(tree.token, rows * width)
    _offer[(rows,)](
        *(laws.logits, vocab, tree.token, tree.parent, control.depth, laws.best, laws.total, sampling.temperature),
        *(sampling.stream, sampling.start, kept, sound, path, end, shut),
        *(width, triton.next_power_of_2(width), path.shape[1]),
        num_warps=1,
        **how,
    )
    _remain[rows, laws.blocks](
        *(laws.logits, vocab, laws.best, laws.total, sampling.temperature, sampling.stream, sampling.start, kept),
        *(end, shut, laws.soonest, laws.drawn, width, draw.BLOCK),
        **how,
    )
    settle(laws, following)


class CacheBundle:
    """Tensors of one shape, [rows, heads, places, size], and where each of them lies: moved in one go."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        first = tensors[0]
        assert all(tensor.stride() == first.stride() and tensor.dtype == first.dtype for tensor in tensors), (
            "of one shape"
        )
        assert first.stride(2) == first.shape[3], "places lie side by side"
        self.lies = torch.tensor([tensor.data_ptr() for tensor in tensors], device=first.device)


def carry(bundle: CacheBundle, control: CycleControl, outcome: VerdictTensors, path: Tensor) -> None:
    """Move the entries of each row's accepted path to the places after its committed ones."""
    like = bundle.tensors[0]
    heads, size = like.shape[1], like.shape[3]
    _carry[len(path), len(bundle.tensors), heads](
        *(bundle.lies, like, control.start, control.row, outcome[0], path, like.stride(0), like.stride(1), size),
        *(path.shape[1], triton.next_power_of_2(size)),
        num_warps=1,
        **early(path, path.numel()),
    )


@dataclass(frozen=True, eq=False)
class CommittedTokens:
    """What the head reads next, [rows, depth + 1] laid end to end, and the slots whose states stand beside it."""

    following: Tensor
    fused: Tensor
    layout: Layout
    end: Tensor  # where each row's last one stands


def report(
    control: CycleControl,
    tree: PackedTree,
    total: Tensor,
    outcome: VerdictTensors,
    path: Tensor,
    committed: CommittedTokens,
    result: Tensor,
) -> None:
    """The record of each row: accepted, next token, whether all had a law, drafted; tokens, parents, the path."""
    (rows, width), levels, layout = tree.token.shape, path.shape[1], committed.layout
    chunk = layout.chunk
    _report[(rows,)](
        *(control.start, control.depth, control.head_row, tree.token, tree.parent, total, *outcome, path),
        *(committed.following, committed.fused, layout.position, layout.row, layout.place, layout.limit),
        *(layout.count, committed.end, result, control.last, control.before, control.left, control.goal),
        *(width, triton.next_power_of_2(width), levels),
        *(triton.next_power_of_2(levels + 1), chunk, -(-(levels + 1) // chunk)),
        num_warps=1,
        **early(path, rows * width),
    )
