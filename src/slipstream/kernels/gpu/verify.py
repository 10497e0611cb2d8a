"""Verifies drafts on the device. The references are the rules of `core`.

Greedy and coupled compare the choice at each slot with the drafted token (`match`). The token and the block rule
compare the two laws (`judge`). The number of kept tokens follows from a few numbers per row. The token after them is
drawn by a race on the residual law, in parallel blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu.launch import early, long, wait
from slipstream.kernels.gpu.noise import ACCEPT, EMIT, fold, key_of, uniform
from slipstream.kernels.gpu.sample import LawBuffers, SamplingInputs


@triton.jit(do_not_specialize=["width"])
def _match(choice, token, depth, best, accepted, next, sound, width, LONG: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait()
    _keep_matches(choice, token, depth, best, accepted, next, sound, tl.program_id(0), width, LONG)


@triton.jit
def _keep_matches(choice, token, depth, best, accepted, next, sound, row, width, LONG: tl.constexpr):
    """Greedy and coupled: keep the drafted tokens that equal the target's choices, up to the first that does not."""
    n = tl.arange(0, LONG)
    follows = (n + 1 < width) & (n < tl.load(depth + row))
    drafted = tl.load(token + row * width + n + 1, mask=follows, other=-1)
    chosen = tl.load(choice + row * width + n, mask=follows, other=-2)
    kept = tl.min(tl.where(drafted == chosen, LONG, n), 0)
    tl.store(accepted + row, kept)
    tl.store(next + row, tl.load(choice + row * width + kept))
    tl.store(sound + row, sound_up_to(best, row, kept, width))


@triton.jit
def sound_up_to(best, row, kept, width):
    """Whether every slot up to the last accepted one has a law."""
    slot = tl.arange(0, 64)
    there = (slot < width) & (slot <= kept)
    high = tl.load(best + row * width + slot, mask=there, other=0.0)
    fine = (high == high) & (tl.abs(high) != float("inf"))
    return tl.min(fine.to(tl.int64), 0)


@triton.jit
def _warm(temperature, row):
    """The temperature of a row; 1 for greedy rows, whose verdict `_settle` finds."""
    warm = tl.load(temperature + row)
    return tl.where(warm > 0, warm, 1.0)


@triton.jit
def _ratio(logits, vocab, token, best, total, chance, warm, row, n, rows, WIDTH: tl.constexpr):
    """p / q of the n-th drafted token of a row; 0 where the draft's law excludes its own token."""
    slot = row * WIDTH + n
    p = tl.exp((tl.load(logits + slot.to(tl.int64) * vocab + tl.load(token + slot + 1)) - tl.load(best + slot)) / warm)
    p = p / tl.load(total + slot)
    q = tl.load(chance + n * rows + row)
    return tl.where(q > 0, p / tl.where(q > 0, q, 1.0), 0.0)


@triton.jit
def laws_at(
    logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block, covered,
    word, NAMED: tl.constexpr, SURE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of two laws: the target's at a slot, and the one that a node was drafted from. SURE: the draft's law
    has all probability on one token."""
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    x = tl.load(logits + slot.to(tl.int64) * vocab + at, mask=inside, other=float("-inf"))
    p = tl.exp((x - tl.load(best + slot)) / warm) / tl.load(total + slot)
    if SURE:
        return at, inside, p, (at == word).to(tl.float32)
    draft_id = at
    if NAMED:
        draft_id = tl.load(slot_of + at, mask=inside, other=-1)
    has = inside & (draft_id >= 0) & (draft_id < covered)
    y = tl.load(drafts + line.to(tl.int64) * draft_vocab + draft_id, mask=has, other=float("-inf"))
    q = tl.where(has, tl.exp((y - tl.load(draft_best + line)) / warm) / tl.load(draft_total + line), 0.0)
    return at, inside, p, q


@triton.jit(do_not_specialize=["rows"])
def _surplus(
    logits, vocab, token, best, total, drafts, draft_vocab, draft_best, draft_total, chance, slot_of,
    temperature, surplus, rows,
    WIDTH: tl.constexpr, NAMED: tl.constexpr, SURE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For the block rule: the sum of the positive part of w_i times the target's law after i drafted tokens minus the
    draft's law."""
    if EARLY:
        wait()
    row, block = tl.program_id(0), tl.program_id(2)
    after = tl.program_id(1) + 1
    warm = _warm(temperature, row)
    carried = tl.full((), 1.0, tl.float64)
    for n in tl.static_range(WIDTH - 1):
        ratio = _ratio(logits, vocab, token, best, total, chance, warm, row, n, rows, WIDTH).to(tl.float64)
        carried = tl.where(n < after, tl.minimum(carried * ratio, 1.0), carried)
    slot, line = row * WIDTH + after, after * rows + row
    _, inside, p, q = laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        draft_vocab, tl.load(token + slot + 1), NAMED, SURE, BLOCK,
    )  # fmt: skip
    excess = tl.sum(tl.where(inside, tl.maximum(p.to(tl.float64) * carried - q.to(tl.float64), 0.0), 0.0), 0)
    tl.store(surplus + (row * (WIDTH - 1) + after) * tl.num_programs(2) + block, excess)


@triton.jit(do_not_specialize=["rows"])
def _accept(
    logits, vocab, token, depth, best, total, chance, temperature, stream, start, surplus, blocks, accepted, carry,
    sound, rows, WIDTH: tl.constexpr, WHOLE: tl.constexpr, BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The number of drafted tokens that are kept. The token rule keeps each with probability min(1, p / q) if all
    before it were kept. The block rule (WHOLE) carries credit from token to token and keeps the longest accepted
    prefix."""
    if EARLY:
        wait()
    row = tl.program_id(0)
    far, warm = tl.load(depth + row), _warm(temperature, row)
    own, begin = tl.load(stream + row), tl.load(start + row)
    kept = far * 0
    going = far >= 0
    carried = tl.full((), 1.0, tl.float64)
    scale = tl.full((), 1.0, tl.float64)
    index = tl.arange(0, BLOCKS)
    for n in tl.static_range(WIDTH - 1):
        ratio = _ratio(logits, vocab, token, best, total, chance, warm, row, n, rows, WIDTH)
        coin = uniform(key_of(own, begin, begin * 0 + n, ACCEPT))
        if WHOLE:
            carried = tl.minimum(carried * ratio.to(tl.float64), 1.0)
            more = carried * 0.0
            if n + 2 < WIDTH:
                line = (row * (WIDTH - 1) + n + 1) * blocks + index
                more = tl.sum(tl.load(surplus + line, mask=index < blocks, other=0.0), 0)
            among = more + 1.0 - carried
            share = tl.where(among > 0, more / tl.where(among > 0, among, 1.0), 0.0)
            keeps = (n < far) & (coin < tl.where(far == n + 1, carried, share))
            kept = tl.where(keeps, n + 1, kept)
            scale = tl.where(keeps, carried, scale)
        else:
            going = going & (n < far) & (coin < tl.minimum(ratio, 1.0).to(tl.float64))
            kept += going.to(kept.dtype)
    tl.store(accepted + row, kept)
    tl.store(carry + row, scale)
    tl.store(sound + row, sound_up_to(best, row, kept, WIDTH))


@triton.jit(do_not_specialize=["rows", "width"])
def _rest(
    logits, vocab, token, depth, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, temperature,
    stream, start, accepted, carry, soonest, drawn, rows, width,
    NAMED: tl.constexpr, SURE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One block of two races for the token after the kept ones: on the residual law, and on the whole law of the
    target."""
    if EARLY:
        wait()
    row, block = tl.program_id(0), tl.program_id(1)
    kept, warm, begin = tl.load(accepted + row), _warm(temperature, row), tl.load(start + row)
    cut = kept < tl.load(depth + row)
    slot, line = row * width + kept, tl.where(cut, kept, 0) * rows + row
    at, inside, p, q = laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        tl.where(cut, draft_vocab, 0), tl.load(token + slot + 1, mask=cut, other=-1), NAMED, SURE, BLOCK,
    )  # fmt: skip
    left = (p * tl.load(carry + row)).to(tl.float32) - q
    key = key_of(tl.load(stream + row), begin, begin * 0 + kept, EMIT)
    noise = -tl.log(uniform(fold(key, at.to(tl.int64))))
    out = (row * tl.num_programs(1) + block) * 2
    time = tl.where(inside & (left > 0), noise / tl.where(left > 0, left, 1.0).to(tl.float64), float("inf"))
    first = tl.min(time, 0)
    tl.store(soonest + out, first)
    tl.store(drawn + out, tl.min(tl.where(time == first, at, vocab), 0))
    time = tl.where(inside & (p > 0), noise / tl.where(p > 0, p, 1.0).to(tl.float64), float("inf"))
    first = tl.min(time, 0)
    tl.store(soonest + out + 1, first)
    tl.store(drawn + out + 1, tl.min(tl.where(time == first, at, vocab), 0))


@triton.jit(do_not_specialize=["width"])
def _settle(
    soonest, drawn, vocab, blocks, next, temperature, choice, token, depth, best, accepted, sound, width,
    BLOCKS: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The winner of the race on the residual law, or of the other race if the residual law is empty. With LONG, rows of
    temperature 0 are verified here: their laws are no laws that the token and the block rule could compare."""
    if EARLY:
        wait()
    row = tl.program_id(0)
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    line = (row * blocks + index) * 2
    left = tl.load(soonest + line, mask=there, other=float("inf"))
    whole = tl.load(soonest + line + 1, mask=there, other=float("inf"))
    residual_time, target_time = tl.min(left, 0), tl.min(whole, 0)
    mine = tl.min(tl.where(left == residual_time, tl.load(drawn + line, mask=there, other=vocab), vocab), 0)
    usual = tl.min(tl.where(whole == target_time, tl.load(drawn + line + 1, mask=there, other=vocab), vocab), 0)
    chosen = tl.where(residual_time < float("inf"), mine, usual)
    chosen = tl.minimum(chosen, vocab - 1).to(tl.int64)
    if LONG == 0:
        tl.store(next + row, chosen)
    elif tl.load(temperature + row) == 0:
        _keep_matches(choice, token, depth, best, accepted, next, sound, row, width, LONG)
    else:
        tl.store(next + row, chosen)


VerdictTensors = tuple[Tensor, Tensor, Tensor]
"""Of each row: how many drafted tokens are kept, the token that follows, and whether every slot so far had a law."""


def match(choice: Tensor, token: Tensor, sampling: SamplingInputs, best: Tensor, outcome: VerdictTensors) -> None:
    """The verdict of `greedy` and `coupled`, by comparing choices with drafted tokens."""
    rows, width = token.shape
    _match[(rows,)](
        *(choice, token, sampling.depth, best, *outcome, width, long(width)), num_warps=1, **early(token, rows * width)
    )


def judge(
    laws: LawBuffers, drafts: LawBuffers | None, chance: Tensor, token: Tensor, choice: Tensor,
    sampling: SamplingInputs, slot_of: Tensor | None,
    room: tuple[Tensor, Tensor], whole: bool, outcome: VerdictTensors,
) -> None:  # fmt: skip
    """The verdict of the token rule or, with `whole`, of the block rule. Drafted tokens and their probabilities are
    ordered by depth, then by row. Drafts without laws had probability 1. `room` is scratch memory for a surplus
    [rows, depth, blocks] and a credit [rows]. `choice`: the target's most probable tokens, which decide for rows of
    temperature 0."""
    (rows, width), vocab, (surplus, carry) = token.shape, laws.logits.shape[1], room
    kept, following, sound = outcome
    named, names = slot_of is not None, token if slot_of is None else slot_of
    wide = triton.next_power_of_2(laws.blocks)
    sure, other = drafts is None, laws if drafts is None else drafts
    drafted = (other.logits, other.logits.shape[1], other.best, other.total)
    how = early(token, rows * width)
    if whole and width > 2:
        _surplus[rows, width - 2, laws.blocks](
            *(laws.logits, vocab, token, laws.best, laws.total, *drafted, chance, names),
            *(sampling.temperature, surplus, rows, width, named, sure, draw.BLOCK),
            **how,
        )
    _accept[(rows,)](
        *(laws.logits, vocab, token, sampling.depth, laws.best, laws.total, chance),
        *(sampling.temperature, sampling.stream, sampling.start, surplus, laws.blocks, kept, carry, sound, rows),
        *(width, whole, wide),
        num_warps=1,
        **how,
    )
    _rest[rows, laws.blocks](
        *(laws.logits, vocab, token, sampling.depth, laws.best, laws.total, *drafted, names),
        *(sampling.temperature, sampling.stream, sampling.start, kept, carry, laws.soonest, laws.drawn, rows),
        *(width, named, sure, draw.BLOCK),
        **how,
    )
    settle(laws, following, (sampling.temperature, choice, token, sampling.depth, laws.best, kept, sound))


def settle(laws: LawBuffers, following: Tensor, greedy: Sequence[Tensor] = ()) -> None:
    """The token after the kept ones of each row, from two races that were run block by block. `greedy`: what verifies
    rows of temperature 0, where some may be; their kept tokens are written, too."""
    wide = triton.next_power_of_2(laws.blocks)
    rows, vocab = len(following), laws.logits.shape[1]
    width = greedy[1].shape[1] if greedy else 0
    _settle[(rows,)](
        *(laws.soonest, laws.drawn, vocab, laws.blocks, following, *(greedy or [following] * 7), width),
        *(wide, long(width) if greedy else 0),
        num_warps=1,
        **early(following, rows),
    )


def surplus_room(rows: int, depth: int, laws: LawBuffers) -> tuple[Tensor, Tensor]:
    device = laws.logits.device
    return (
        torch.zeros(rows, max(1, depth), laws.blocks, dtype=torch.float64, device=device),
        torch.ones(rows, dtype=torch.float64, device=device),
    )
