"""From logits to tokens on the device. The references are `core.sampling` and `core.noise`.

The vocabulary is read once, in parallel blocks. Each block computes its largest logit, the sum of its weights and
the winner of the race that draws a token (`core.noise.race`). A second small kernel combines the blocks. Weights are
not divided by their sum before the race. This can change the winner only if two tokens finish within rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.core.noise import Purpose
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.noise import FIELD, fold, key_of, uniform

BLOCK = 2048  # tokens of a vocabulary that a program goes through


@triton.jit(do_not_specialize=["width", "deep"])
def _survey(
    logits, vocab, temperature, stream, start, ids, far, high, who, mass, soonest, drawn, width, deep,
    PURPOSE: tl.constexpr, RACE: tl.constexpr, NAMED: tl.constexpr, TREE: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One block of a slot's vocabulary: the largest logit, the sum of the weights relative to it, and the winner of the
    block's race. Slot s is token s % width + deep of row s // width. In a TREE it follows `far[s]` drafted tokens."""
    if EARLY:
        wait()
    slot, block = tl.program_id(0), tl.program_id(1)
    row, node = slot // width, (slot % width + deep).to(tl.int64)
    if TREE:
        node = tl.load(far + slot)
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
            key = key_of(tl.load(stream + row), begin + node, begin * 0, PURPOSE)
        else:
            key = key_of(tl.load(stream + row), begin, begin * 0 + node, PURPOSE)
        name = at.to(tl.int64)
        if NAMED:
            name = tl.load(ids + at, mask=inside, other=0)
        time = -tl.log(uniform(fold(key, name))) / tl.where(weight > 0, weight, 1.0)
        time = tl.where(inside & (weight > 0), time, float("inf"))
        first = tl.min(time, 0)
        tl.store(soonest + line, first)
        tl.store(drawn + line, tl.min(tl.where(time == first, at, vocab), 0))


@triton.jit(do_not_specialize=["token_step", "width", "deep"])
def _conclude(
    logits, vocab, temperature, ids, token, token_step, high, who, mass, soonest, drawn, best, total, chance, stop,
    depth, blocks, width, deep, RACE: tl.constexpr, NAMED: tl.constexpr, DRAFTING: tl.constexpr,
    BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Combine the blocks of a slot: its largest logit, the sum of its weights, and its token."""
    if EARLY:
        wait()
    slot = tl.program_id(0)
    row = slot // width
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    line = slot * blocks + index
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
        tl.store(depth + row, tl.where(sure, far, tl.minimum(far, deep)))
    name = chosen.to(tl.int64)
    if NAMED:
        name = tl.load(ids + chosen)
    tl.store(token + row * token_step + slot % width, name)


@dataclass(frozen=True, eq=False)
class SamplingInputs:
    """The sampling parameters and the noise position of each row."""

    temperature: Tensor  # float32; 0: greedy
    stream: Tensor  # the key of its noise
    start: Tensor  # tokens committed
    depth: Tensor  # tokens to draft, made smaller where drafting stops early
    stop: Tensor  # float32: no law without a token as likely as this is drawn from
    limits: Sequence[Tensor] = ()  # float32: top-k, top-p and min-p, where laws are cut


class LawBuffers:
    """The logits of slots, the maximum and the sum that turn them into laws, and scratch memory for the blocks."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.logits = torch.zeros(slots, vocab, device=device)
        self.best, self.total = torch.zeros(slots, device=device), torch.zeros(slots, device=device)
        self.blocks = triton.cdiv(vocab, BLOCK)

        def scratch(kind: torch.dtype) -> Tensor:
            return torch.zeros(slots, self.blocks, 2, dtype=kind, device=device)

        self.high, self.who, self.mass = scratch(torch.float32), scratch(torch.int32), scratch(torch.float64)
        self.soonest, self.drawn = scratch(torch.float64), scratch(torch.int32)

    def section(self, start: int, size: int) -> LawBuffers:
        """The laws of some of the slots, as views."""
        part = copy.copy(self)
        for name in ("logits", "best", "total", "high", "who", "mass", "soonest", "drawn"):
            setattr(part, name, getattr(self, name)[start : start + size])
        return part


def choose(
    laws: LawBuffers,
    sampling: SamplingInputs,
    out: Tensor,
    width: int,
    purpose: Purpose,
    race: bool = True,
    far: Tensor | None = None,
) -> None:
    """Choose the target's token at every slot, `width` slots per row. Without `race`, only the maximum, the sum and the
    most probable token are computed. In a tree, `far` is the number of drafted tokens that each slot follows."""
    _draw(laws, sampling, out, width, (width, 0), purpose, race, None, None, far)


def draft(
    laws: LawBuffers,
    sampling: SamplingInputs,
    out: Tensor,
    step: int,
    depth: int,
    purpose: Purpose,
    chance: Tensor,
    ids: Tensor | None,
    race: bool = True,
) -> None:
    """Draw the drafted token after `depth` others for each row, and write it to `out`, whose rows are `step` apart.
    Without `race` it is the most probable one."""
    _draw(laws, sampling, out, step, (1, depth), purpose, race, ids, chance)


def _draw(
    laws: LawBuffers,
    sampling: SamplingInputs,
    out: Tensor,
    step: int,
    place: tuple[int, int],
    purpose: Purpose,
    race: bool,
    ids: Tensor | None,
    chance: Tensor | None,
    far: Tensor | None = None,
) -> None:
    slots, vocab = laws.logits.shape
    names = out if ids is None else ids
    _survey[slots, laws.blocks](
        *(
            laws.logits,
            vocab,
            sampling.temperature,
            sampling.stream,
            sampling.start,
            names,
            names if far is None else far,
        ),
        *(laws.high, laws.who, laws.mass, laws.soonest, laws.drawn),
        *(*place, int(purpose), race, ids is not None, far is not None, BLOCK),
        **early(laws.logits, slots),
    )
    _conclude[(slots,)](
        *(laws.logits, vocab, sampling.temperature, names, out, step, laws.high, laws.who, laws.mass, laws.soonest),
        *(laws.drawn, laws.best, laws.total, laws.best if chance is None else chance, sampling.stop, sampling.depth),
        *(laws.blocks, *place, race, ids is not None, chance is not None, triton.next_power_of_2(laws.blocks)),
        num_warps=1,
        **early(laws.logits, slots),
    )
