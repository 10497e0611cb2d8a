"""Records the log-probabilities of emitted tokens on the device. The reference is `engines.logprobs`.

They are those of the model itself: at temperature 1, before top-k, top-p and min-p. Where no temperature applies, the
maximum and the sum that the choice of tokens computes are used. Otherwise `survey` computes them beforehand.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.sample import LawBuffers


@triton.jit(do_not_specialize=["width"])
def _survey(logits, vocab, token, high, mass, drafted, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One block of a slot's vocabulary: the largest logit, and the sum of the weights relative to it. Also the logit of
    the token drafted there, which a lossy rule may accept although the target's truncated law excludes it."""
    if EARLY:
        wait()
    slot, block = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + slot.to(tl.int64) * vocab + at, mask=at < vocab, other=float("-inf"))
    top = tl.max(x, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    line = slot * tl.num_programs(1) + block
    tl.store(high + line, top)
    tl.store(mass + line, tl.sum(tl.exp(x - safe), 0))
    if (block == 0) & (slot % width + 1 < width):
        tl.store(drafted + slot, tl.load(logits + slot.to(tl.int64) * vocab + tl.load(token + slot + 1)))


@triton.jit(do_not_specialize=["width", "columns"])
def _write(
    logits, vocab, token, accepted, following, high, mass, drafted, values, indices, record, blocks, width, columns,
    top, SURVEYED: tl.constexpr, BLOCKS: tl.constexpr, TOPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The record of one slot [token, width x top ids, width x top values], where the slot emits a token."""
    if EARLY:
        wait()
    slot = tl.program_id(0)
    row, n = slot // width, slot % width
    kept = tl.load(accepted + row)
    if n <= kept:
        index = tl.arange(0, BLOCKS)
        there = index < blocks
        each = tl.load(high + slot * blocks + index, mask=there, other=float("-inf"))
        best = tl.max(each, 0)
        total = tl.sum(tl.load(mass + slot * blocks + index, mask=there, other=0.0) * tl.exp(each - best), 0)
        whole = best + tl.log(total)
        emitted = tl.load(following + row)
        if n < kept:
            emitted = tl.load(token + row * width + n + 1)
        line = record + row * columns
        logit = tl.load(logits + slot.to(tl.int64) * vocab + emitted)
        if SURVEYED:
            same = tl.load(token + slot + 1, mask=n + 1 < width, other=-1) == emitted
            logit = tl.where(same, tl.load(drafted + slot), logit)
        tl.store(line + n, (logit - whole).to(tl.float64))
        if TOPS > 0:
            rank = tl.arange(0, TOPS)
            inside = rank < top
            name = tl.load(indices + slot * top + rank, mask=inside, other=0)
            value = tl.load(values + slot * top + rank, mask=inside, other=0.0) - whole
            tl.store(line + width + n * top + rank, name.to(tl.float64), mask=inside)
            tl.store(line + width * (1 + top) + n * top + rank, value.to(tl.float64), mask=inside)


class LogprobBuffers:
    """Buffers of one captured cycle. `top`: the number of most probable tokens that are recorded at each slot."""

    def __init__(self, laws: LawBuffers, width: int, top: int, ready: bool) -> None:
        """`ready`: the laws are those of temperature 1 without truncation, so their maximum and sum are used."""
        slots, vocab = laws.logits.shape
        self._laws, self._width, self._top, self._ready = laws, width, min(top, vocab), ready
        self._blocks = 1 if ready else laws.blocks
        new = laws.logits.new_zeros
        self._high, self._mass = (
            (laws.best, laws.total) if ready else (new(slots, laws.blocks), new(slots, laws.blocks))
        )
        self._drafted = new(slots)
        self._values = new(slots, max(1, self._top))
        self._indices = torch.zeros_like(self._values, dtype=torch.long)

    @property
    def columns(self) -> int:
        """Numbers of each row in the record."""
        return self._width * (1 + 2 * self._top)

    def survey(self, token: Tensor) -> None:
        """Read the logits before they are truncated. `token`: [rows, width], the committed end and the draft."""
        laws = self._laws
        slots, vocab = laws.logits.shape
        if self._top:
            torch.topk(laws.logits, self._top, sorted=True, out=(self._values, self._indices))
        if not self._ready:
            _survey[slots, laws.blocks](
                laws.logits,
                vocab,
                token,
                self._high,
                self._mass,
                self._drafted,
                self._width,
                draw.BLOCK,
                **early(laws.logits, slots),
            )

    def write(self, token: Tensor, verdict: tuple[Tensor, Tensor, Tensor], record: Tensor) -> None:
        """Write the log-probabilities to `record`, a part of the columns of a matrix."""
        (slots, vocab), (accepted, following, _) = self._laws.logits.shape, verdict
        _write[(slots,)](
            *(self._laws.logits, vocab, token, accepted, following, self._high, self._mass, self._drafted),
            *(self._values, self._indices, record, self._blocks, self._width, record.stride(0), self._top),
            *(
                not self._ready,
                triton.next_power_of_2(self._blocks),
                triton.next_power_of_2(self._top) if self._top else 0,
            ),
            num_warps=1,
            **early(self._laws.logits, slots),
        )

    def read(self, numbers: list[float]) -> tuple[list[float], list[list[tuple[int, float]]]]:
        """The log-probabilities of a row's tokens, and those of the most probable tokens, from its record."""
        width, top = self._width, self._top
        ids, values = numbers[width : width * (1 + top)], numbers[width * (1 + top) :]
        tops = [
            [
                (int(name), value)
                for name, value in zip(ids[start : start + top], values[start : start + top], strict=True)
            ]
            for start in range(0, width * top, top or 1)
        ]
        return numbers[:width], tops
