"""From logits to tokens and verdicts, without leaving the device: what they must equal are the rules of `core`.

A vocabulary is gone through once, in blocks side by side: largest logit, sum of the weights and the race that draws a
token (`core.noise.race`) all come of one reading, and a second small kernel puts the blocks together. The noise is that
of `core.noise`: the same keys, the same numbers. Weights are not divided by their sum before the race, which changes
who wins it only where two finish within rounding.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.core.noise import Purpose

BLOCK = 2048  # tokens of a vocabulary that a program goes through
ACCEPT, EMIT, FIELD = tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)
assert (Purpose.DRAFT, Purpose.ACCEPT, Purpose.EMIT, Purpose.FIELD) == (1, 2, 3, 4), "kernels say them as numbers"


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _fold(key, field):
    return _mix(_mix(key) + (field + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _key(stream, start, node, purpose: tl.constexpr):
    key = _fold(_fold(stream.to(tl.uint64), start), node)
    return _mix(_mix(key) + tl.full((), purpose + 1, tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _uniform(key):
    return ((key >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _survey(
    logits, vocab, temperature, stream, start, ids, high, who, mass, soonest, drawn,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PURPOSE: tl.constexpr, RACE: tl.constexpr, NAMED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of a slot's vocabulary: its largest logit, the weight of all relative to that, and who wins its race.
    Slot s is the (s % WIDTH + DEPTH)-th of row s // WIDTH."""
    slot, block = tl.program_id(0), tl.program_id(1)
    row, node = slot // WIDTH, slot % WIDTH + DEPTH
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    x = tl.load(logits + slot.to(tl.int64) * vocab + at, mask=inside, other=float("-inf")).to(tl.float32)
    warm = tl.load(temperature + row)
    scale = tl.where(warm > 0, warm, 1.0)
    best = tl.max(x, 0)
    safe = tl.where(best == float("-inf"), 0.0, best)
    lost = tl.max((x != x).to(tl.int32), 0) > 0
    line = slot * tl.num_programs(1) + block
    tl.store(high + line, tl.where(lost, float("nan"), best))
    tl.store(who + line, tl.min(tl.where(x == best, at, vocab), 0))
    weight = tl.exp((x - safe) / scale).to(tl.float64)
    tl.store(mass + line, tl.sum(tl.where(inside, weight, 0.0), 0))
    if RACE:
        begin = tl.load(start + row)
        if PURPOSE == FIELD:
            key = _key(tl.load(stream + row), begin + node, begin * 0, PURPOSE)
        else:
            key = _key(tl.load(stream + row), begin, begin * 0 + node, PURPOSE)
        name = at.to(tl.int64)
        if NAMED:
            name = tl.load(ids + at, mask=inside, other=0)
        time = -tl.log(_uniform(_fold(key, name))) / tl.where(weight > 0, weight, 1.0)
        time = tl.where(inside & (weight > 0), time, float("inf"))
        first = tl.min(time, 0)
        tl.store(soonest + line, first)
        tl.store(drawn + line, tl.min(tl.where(time == first, at, vocab), 0))


@triton.jit
def _conclude(
    logits, vocab, temperature, ids, token, token_step, high, who, mass, soonest, drawn, best, total, chance, stop,
    depth, blocks,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, RACE: tl.constexpr, NAMED: tl.constexpr, DRAFTING: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """The blocks of a slot put together: its largest logit, the sum of its weights, and its token."""
    slot = tl.program_id(0)
    row = slot // WIDTH
    some = tl.arange(0, BLOCKS)
    there = some < blocks
    line = slot * blocks + some
    each = tl.load(high + line, mask=there, other=float("-inf"))
    lost = tl.max((each != each).to(tl.int32), 0) > 0
    top = tl.max(each, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    warm = tl.load(temperature + row)
    scale = tl.where(warm > 0, warm, 1.0)
    share = tl.exp((each - safe) / scale).to(tl.float64)
    whole = tl.sum(tl.load(mass + line, mask=there, other=0.0) * share, 0).to(tl.float32)
    chosen = tl.min(tl.where(each == top, tl.load(who + line, mask=there, other=vocab), vocab), 0)
    if RACE:
        time = tl.load(soonest + line, mask=there, other=float("inf")) / tl.where(share > 0, share, 1.0)
        time = tl.where(share > 0, time, float("inf"))
        first = tl.min(time, 0)
        winner = tl.min(tl.where(time == first, tl.load(drawn + line, mask=there, other=vocab), vocab), 0)
        chosen = tl.where(warm > 0, winner, chosen)
    chosen = tl.minimum(chosen, vocab - 1)  # where there is no law at all
    tl.store(best + slot, tl.where(lost, float("nan"), top))
    tl.store(total + slot, whole)
    if DRAFTING:
        likely = tl.exp((tl.load(logits + slot.to(tl.int64) * vocab + chosen).to(tl.float32) - top) / scale) / whole
        tl.store(chance + slot, tl.where(warm > 0, likely, 1.0))
        far = tl.load(depth + row)
        sure = tl.where(warm > 0, 1.0 / whole, 1.0) >= tl.load(stop + row)
        tl.store(depth + row, tl.where(sure, far, tl.minimum(far, DEPTH)))
    name = chosen.to(tl.int64)
    if NAMED:
        name = tl.load(ids + chosen)
    tl.store(token + row * token_step + slot % WIDTH, name)


@triton.jit
def _match(choice, token, depth, best, accepted, next, sound, WIDTH: tl.constexpr):
    """Greedy and coupled: keep the drafts that are the target's own choices, up to the first that is not."""
    row = tl.program_id(0)
    far = tl.load(depth + row)
    kept = far * 0
    going = far >= 0
    for n in tl.static_range(WIDTH - 1):
        drafted = tl.load(token + row * WIDTH + n + 1)
        going = going & (n < far) & (drafted == tl.load(choice + row * WIDTH + n))
        kept += going.to(kept.dtype)
    tl.store(accepted + row, kept)
    tl.store(next + row, tl.load(choice + row * WIDTH + kept))
    tl.store(sound + row, _sound(best, row, kept, WIDTH))


@triton.jit
def _sound(best, row, kept, WIDTH: tl.constexpr):
    """Whether every slot up to the last accepted one has a law."""
    slot = tl.arange(0, 64)
    there = (slot < WIDTH) & (slot <= kept)
    high = tl.load(best + row * WIDTH + slot, mask=there, other=0.0)
    fine = (high == high) & (tl.abs(high) != float("inf"))
    return tl.min(fine.to(tl.int64), 0)


@triton.jit
def _ratio(logits, vocab, token, best, total, chance, warm, row, n, rows, WIDTH: tl.constexpr):
    """p / q of the n-th drafted token of a row; 0 where the draft's law excludes its own token."""
    slot = row * WIDTH + n
    p = tl.exp((tl.load(logits + slot.to(tl.int64) * vocab + tl.load(token + slot + 1)) - tl.load(best + slot)) / warm)
    p = p / tl.load(total + slot)
    q = tl.load(chance + n * rows + row)
    return tl.where(q > 0, p / tl.where(q > 0, q, 1.0), 0.0)


@triton.jit
def _laws_at(
    logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block, covered,
    NAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of the target's law at a slot and of the law a node was drafted from."""
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    x = tl.load(logits + slot.to(tl.int64) * vocab + at, mask=inside, other=float("-inf"))
    known = at
    if NAMED:
        known = tl.load(slot_of + at, mask=inside, other=-1)
    has = inside & (known >= 0) & (known < covered)
    y = tl.load(drafts + line.to(tl.int64) * draft_vocab + known, mask=has, other=float("-inf"))
    p = tl.exp((x - tl.load(best + slot)) / warm) / tl.load(total + slot)
    q = tl.where(has, tl.exp((y - tl.load(draft_best + line)) / warm) / tl.load(draft_total + line), 0.0)
    return at, inside, p, q


@triton.jit
def _surplus(
    logits, vocab, token, best, total, drafts, draft_vocab, draft_best, draft_total, chance, slot_of,
    temperature, surplus, rows,
    WIDTH: tl.constexpr, NAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For the block rule: how far w_i times the target's law after i drafted tokens exceeds the draft's, in sum."""
    row, block = tl.program_id(0), tl.program_id(2)
    after = tl.program_id(1) + 1
    warm = tl.load(temperature + row)
    carried = tl.full((), 1.0, tl.float64)
    for n in tl.static_range(WIDTH - 1):
        ratio = _ratio(logits, vocab, token, best, total, chance, warm, row, n, rows, WIDTH).to(tl.float64)
        carried = tl.where(n < after, tl.minimum(carried * ratio, 1.0), carried)
    slot, line = row * WIDTH + after, after * rows + row
    _, inside, p, q = _laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        draft_vocab, NAMED, BLOCK,
    )  # fmt: skip
    found = tl.sum(tl.where(inside, tl.maximum(p.to(tl.float64) * carried - q.to(tl.float64), 0.0), 0.0), 0)
    tl.store(surplus + (row * (WIDTH - 1) + after) * tl.num_programs(2) + block, found)


@triton.jit
def _accept(
    logits, vocab, token, depth, best, total, chance, temperature, stream, start, surplus, blocks, accepted, carry,
    sound, rows, WIDTH: tl.constexpr, WHOLE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """How many drafted tokens are kept: by the token rule each with min(1, p / q) after those before it; by the block
    rule (WHOLE) credit is carried from token to token, and the longest prefix that is kept wins."""
    row = tl.program_id(0)
    far, warm = tl.load(depth + row), tl.load(temperature + row)
    own, begin = tl.load(stream + row), tl.load(start + row)
    kept = far * 0
    going = far >= 0
    carried = tl.full((), 1.0, tl.float64)
    scale = tl.full((), 1.0, tl.float64)
    some = tl.arange(0, BLOCKS)
    for n in tl.static_range(WIDTH - 1):
        ratio = _ratio(logits, vocab, token, best, total, chance, warm, row, n, rows, WIDTH)
        coin = _uniform(_key(own, begin, begin * 0 + n, ACCEPT))
        if WHOLE:
            carried = tl.minimum(carried * ratio.to(tl.float64), 1.0)
            more = carried * 0.0
            if n + 2 < WIDTH:
                line = (row * (WIDTH - 1) + n + 1) * blocks + some
                more = tl.sum(tl.load(surplus + line, mask=some < blocks, other=0.0), 0)
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
    tl.store(sound + row, _sound(best, row, kept, WIDTH))


@triton.jit
def _rest(
    logits, vocab, depth, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, temperature, stream,
    start, accepted, carry, soonest, drawn, rows,
    WIDTH: tl.constexpr, NAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of two races for the token after the kept ones: on what is left of the target's law, and on it all."""
    row, block = tl.program_id(0), tl.program_id(1)
    kept, warm, begin = tl.load(accepted + row), tl.load(temperature + row), tl.load(start + row)
    cut = kept < tl.load(depth + row)
    slot, line = row * WIDTH + kept, tl.where(cut, kept, 0) * rows + row
    at, inside, p, q = _laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        tl.where(cut, draft_vocab, 0), NAMED, BLOCK,
    )  # fmt: skip
    left = (p * tl.load(carry + row)).to(tl.float32) - q
    key = _key(tl.load(stream + row), begin, begin * 0 + kept, EMIT)
    noise = -tl.log(_uniform(_fold(key, at.to(tl.int64))))
    out = (row * tl.num_programs(1) + block) * 2
    time = tl.where(inside & (left > 0), noise / tl.where(left > 0, left, 1.0).to(tl.float64), float("inf"))
    first = tl.min(time, 0)
    tl.store(soonest + out, first)
    tl.store(drawn + out, tl.min(tl.where(time == first, at, vocab), 0))
    time = tl.where(inside & (p > 0), noise / tl.where(p > 0, p, 1.0).to(tl.float64), float("inf"))
    first = tl.min(time, 0)
    tl.store(soonest + out + 1, first)
    tl.store(drawn + out + 1, tl.min(tl.where(time == first, at, vocab), 0))


@triton.jit
def _settle(soonest, drawn, vocab, blocks, next, BLOCKS: tl.constexpr):
    """The winner of the race on what was left; of the other one where nothing was."""
    row = tl.program_id(0)
    some = tl.arange(0, BLOCKS)
    there = some < blocks
    line = (row * blocks + some) * 2
    left = tl.load(soonest + line, mask=there, other=float("inf"))
    whole = tl.load(soonest + line + 1, mask=there, other=float("inf"))
    one, other = tl.min(left, 0), tl.min(whole, 0)
    mine = tl.min(tl.where(left == one, tl.load(drawn + line, mask=there, other=vocab), vocab), 0)
    usual = tl.min(tl.where(whole == other, tl.load(drawn + line + 1, mask=there, other=vocab), vocab), 0)
    found = tl.where(one < float("inf"), mine, usual)
    tl.store(next + row, tl.minimum(found, vocab - 1).to(tl.int64))


@dataclass(frozen=True, eq=False)
class Wishes:
    """What each row wants, and how far it is: one entry per row."""

    temperature: Tensor  # float32; 0: greedy
    stream: Tensor  # the key of its noise
    start: Tensor  # tokens committed
    depth: Tensor  # tokens to draft, made smaller where drafting stops early
    stop: Tensor  # float32: no law without a token as likely as this is drawn from


class Laws:
    """Logits of slots, and what makes laws of them; scratch for the blocks their vocabulary is gone through in."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.logits = torch.zeros(slots, vocab, device=device)
        self.best, self.total = torch.zeros(slots, device=device), torch.zeros(slots, device=device)
        self.blocks = triton.cdiv(vocab, BLOCK)

        def scratch(kind: torch.dtype) -> Tensor:
            return torch.zeros(slots, self.blocks, 2, dtype=kind, device=device)

        self.high, self.who, self.mass = scratch(torch.float32), scratch(torch.int32), scratch(torch.float64)
        self.soonest, self.drawn = scratch(torch.float64), scratch(torch.int32)

    def some(self, start: int, size: int) -> Laws:
        """The laws of some slots, where they lie."""
        part = copy.copy(self)
        for name in ("logits", "best", "total", "high", "who", "mass", "soonest", "drawn"):
            setattr(part, name, getattr(self, name)[start : start + size])
        return part


Found = tuple[Tensor, Tensor, Tensor]
"""Of each row: how many drafted tokens are kept, the token that follows, and whether every slot so far had a law."""


def choose(laws: Laws, wishes: Wishes, out: Tensor, width: int, purpose: Purpose, race: bool = True) -> None:
    """The target's own token at every slot, `width` slots a row. Without `race` only what makes a law of logits is
    worked out, and the likeliest token."""
    _draw(laws, wishes, out, width, (width, 0), purpose, race, None, None)


def draft(
    laws: Laws, wishes: Wishes, out: Tensor, step: int, depth: int, purpose: Purpose, chance: Tensor, ids: Tensor | None
) -> None:
    """Draw the drafted token after `depth` others, one for each row, into `out`, whose rows are `step` apart."""
    _draw(laws, wishes, out, step, (1, depth), purpose, True, ids, chance)


def _draw(
    laws: Laws,
    wishes: Wishes,
    out: Tensor,
    step: int,
    place: tuple[int, int],
    purpose: Purpose,
    race: bool,
    ids: Tensor | None,
    chance: Tensor | None,
) -> None:
    slots, vocab = laws.logits.shape
    names = out if ids is None else ids
    _survey[slots, laws.blocks](
        *(laws.logits, vocab, wishes.temperature, wishes.stream, wishes.start, names),
        *(laws.high, laws.who, laws.mass, laws.soonest, laws.drawn),
        *(*place, int(purpose), race, ids is not None, BLOCK),
    )
    _conclude[(slots,)](
        *(laws.logits, vocab, wishes.temperature, names, out, step, laws.high, laws.who, laws.mass, laws.soonest),
        *(laws.drawn, laws.best, laws.total, laws.best if chance is None else chance, wishes.stop, wishes.depth),
        *(laws.blocks, *place, race, ids is not None, chance is not None, triton.next_power_of_2(laws.blocks)),
        num_warps=1,
    )


def match(choice: Tensor, token: Tensor, wishes: Wishes, best: Tensor, found: Found) -> None:
    """The verdict on rows whose slots chose so, by comparing."""
    rows, width = token.shape
    _match[(rows,)](choice, token, wishes.depth, best, *found, width, num_warps=1)


def judge(
    laws: Laws, drafts: Laws, chance: Tensor, token: Tensor, wishes: Wishes, slot_of: Tensor | None,
    room: tuple[Tensor, Tensor], whole: bool, found: Found,
) -> None:  # fmt: skip
    """The verdict by the token rule or, `whole`, by the block rule. Drafts and their chances stand one depth after the
    other, all rows of each; `room` is for a surplus [rows, depth, blocks] and a credit [rows]."""
    (rows, width), vocab, (surplus, carry) = token.shape, laws.logits.shape[1], room
    kept, following, sound = found
    named, names = slot_of is not None, token if slot_of is None else slot_of
    wide = triton.next_power_of_2(laws.blocks)
    drafted = (drafts.logits, drafts.logits.shape[1], drafts.best, drafts.total)
    if whole and width > 2:
        _surplus[rows, width - 2, laws.blocks](
            *(laws.logits, vocab, token, laws.best, laws.total, *drafted, chance, names),
            *(wishes.temperature, surplus, rows, width, named, BLOCK),
        )
    _accept[(rows,)](
        *(laws.logits, vocab, token, wishes.depth, laws.best, laws.total, chance),
        *(wishes.temperature, wishes.stream, wishes.start, surplus, laws.blocks, kept, carry, sound, rows),
        *(width, whole, wide),
        num_warps=1,
    )
    _rest[rows, laws.blocks](
        *(laws.logits, vocab, wishes.depth, laws.best, laws.total, *drafted, names),
        *(wishes.temperature, wishes.stream, wishes.start, kept, carry, laws.soonest, laws.drawn, rows),
        *(width, named, BLOCK),
    )
    _settle[(rows,)](laws.soonest, laws.drawn, vocab, laws.blocks, following, wide, num_warps=1)


def surplus_room(rows: int, depth: int, laws: Laws) -> tuple[Tensor, Tensor]:
    device = laws.logits.device
    return (
        torch.zeros(rows, max(1, depth), laws.blocks, dtype=torch.float64, device=device),
        torch.ones(rows, dtype=torch.float64, device=device),
    )
