"""The rules of a transcript with timestamps on the device. The reference is `models.speech.timestamp_rules`.

A slot's rules depend on the tokens before it: the last two, how many there are after the prompt, and the last
timestamp. The host gives these for the committed text of each row, and the drafted tokens are read on the device. The
first kernel sets forbidden tokens to -inf and reduces blocks of the vocabulary. The second one combines the blocks: a
timestamp must follow where all of them together are likelier than every token of text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.cycle import CycleControl
from slipstream.kernels.gpu.launch import early, long, wait

BLOCK = 2048  # tokens of a vocabulary that a program goes through
HELD = 5  # numbers of each block: maximum and sum of all logits, maximum of text, maximum and sum of times


@triton.jit(do_not_specialize=["width", "slots_width", "deep"])
def _restrict(
    logits, vocab, token, before, start, begin, latest, forbidden, held, width, slots_width, deep, first, end, limit,
    TIMES: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One block of a slot. Slot s follows token s % slots_width + deep of row s // slots_width."""
    if EARLY:
        wait()
    slot, block = tl.program_id(0), tl.program_id(1)
    row, node = slot // slots_width, slot % slots_width + deep
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    where = logits + slot.to(tl.int64) * vocab + at
    x = tl.load(where, mask=inside, other=float("-inf"))
    count = tl.load(start + row) + node - tl.load(begin + row)
    fresh = count <= 0
    allowed = tl.load(forbidden + tl.where(fresh, vocab, 0) + at, mask=inside, other=1) == 0
    if TIMES:
        n = tl.arange(0, LONG)
        drafted = tl.load(token + row * width + n, mask=(n > 0) & (n <= node), other=-1)
        last_time = tl.maximum(tl.load(latest + row), tl.max(tl.where(drafted >= first, drafted, -1), 0))
        last = tl.load(token + row * width + node)
        second = tl.load(token + row * width + tl.maximum(node - 1, 0))
        second = tl.where(node > 0, second, tl.load(before + row))
        after_time = last >= first
        after_pair = (count < 2) | (second >= first)
        is_time = at >= first
        low = tl.where(after_time & (count >= 2) & (second < first), last_time, last_time + 1)
        wrong = after_time & after_pair & is_time
        wrong = wrong | (after_time & (count >= 2) & (second < first) & (at < end))
        wrong = wrong | ((last_time >= 0) & is_time & (at < low))
        opening = is_time & (at <= first + limit)
        allowed = allowed & (tl.where(fresh, opening.to(tl.int32), 1 - wrong.to(tl.int32)) != 0)
    y = tl.where(allowed, x, float("-inf"))
    tl.store(where, y, mask=inside)
    line = held + (slot * tl.num_programs(1) + block) * 5
    _reduce(line, x)
    if TIMES:
        text = tl.where(at < first, y, float("-inf"))
        tl.store(line + 2, tl.where(fresh, float("inf"), tl.max(text, 0)))  # no time is forced at the beginning
        _reduce(line + 3, tl.where(at < first, float("-inf"), y))


@triton.jit
def _reduce(line, x):
    """Store the maximum and the sum of the weights relative to it."""
    high = tl.max(x, 0)
    safe = tl.where(high == float("-inf"), 0.0, high)
    tl.store(line, high)
    tl.store(line + 1, tl.sum(tl.exp(x - safe), 0))


@triton.jit
def _total(line, there):
    """The logarithm of the sum of all weights."""
    high = tl.load(line, mask=there, other=float("-inf"))
    top = tl.max(high, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    each = tl.load(line + 1, mask=there, other=0.0)
    total = tl.sum(each * tl.exp(high - safe), 0)
    return tl.where(total > 0, safe + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))


@triton.jit
def _force(
    logits, vocab, held, whole, first, blocks, TIMES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Forbid text where a timestamp must follow, and store the logarithm of each slot's unrestricted sum."""
    if EARLY:
        wait()
    slot, block = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    lines = held + (slot * blocks + index) * 5
    if block == 0:
        tl.store(whole + slot, _total(lines, there))
    if TIMES:
        text = tl.max(tl.load(lines + 2, mask=there, other=float("-inf")), 0)
        if _total(lines + 3, there) > text:
            at = block * BLOCK + tl.arange(0, BLOCK)
            tl.store(logits + slot.to(tl.int64) * vocab + at, float("-inf"), mask=(at < first) & (at < vocab))


@triton.jit(do_not_specialize=["width", "columns"])
def _advance(
    logits, vocab, token, accepted, following, whole, latest, record, width, columns, first,
    LONG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Record the log-probability of each emitted token, and the last timestamp for the next cycle."""
    if EARLY:
        wait()
    r, n = tl.program_id(0), tl.arange(0, LONG)
    kept = tl.load(accepted + r)
    live = n <= kept
    drafted = tl.load(token + r * width + n + 1, mask=n < kept, other=0)
    emitted = tl.where(n < kept, drafted, tl.load(following + r))
    slot = (r * width + n).to(tl.int64)
    own = tl.load(logits + slot * vocab + emitted, mask=live, other=0.0) - tl.load(whole + slot, mask=live, other=0.0)
    tl.store(record + r * columns + n, own.to(tl.float64), mask=n < width)
    times = tl.max(tl.where(live & (emitted >= first), emitted, -1), 0)
    tl.store(latest + r, tl.maximum(tl.load(latest + r), times))


@dataclass(frozen=True)
class TranscriptSettings:
    """The rules that rows of one captured cycle share. `first_time` None: no timestamps."""

    end_token: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    first_time: int | None
    latest_start: int


class TranscriptCycle:
    """The rules' buffers of one captured cycle."""

    def __init__(self, settings: TranscriptSettings, rows: int, width: int, vocab: int, device: torch.device) -> None:
        self._settings, self._vocab, self._width = settings, vocab, width
        self._first = vocab if settings.first_time is None else settings.first_time
        self.state = torch.zeros(2, rows, dtype=torch.long, device=device)
        self._begin, self._latest = self.state  # length of the prompt; the last timestamp, -1 for none
        table = torch.zeros(2, vocab, dtype=torch.int8)
        table[:, list(settings.suppressed)] = 1
        table[1, list(settings.suppressed_first)] = 1
        self._forbidden, self._blocks = table.to(device), triton.cdiv(vocab, BLOCK)
        self._held = torch.zeros(rows * width, self._blocks, HELD, device=device)
        self._whole = torch.zeros(rows * width, device=device)

    def restrict(
        self, logits: Tensor, token: Tensor, control: CycleControl, slots: int, deep: int, recorded: bool
    ) -> None:
        """Apply the rules to consecutive `slots` of each row, the first of which follows token `deep`. `recorded`: the
        tokens' log-probabilities will be asked for."""
        settings, times = self._settings, self._settings.first_time is not None
        count = len(logits)
        _restrict[count, self._blocks](
            *(logits, self._vocab, token, control.before, control.start, self._begin, self._latest, self._forbidden),
            *(self._held, self._width, slots, deep, self._first, settings.end_token, settings.latest_start),
            *(times, long(self._width), BLOCK),
            **early(logits, count),
        )
        if not times and not recorded:
            return
        _force[count, self._blocks](
            *(logits, self._vocab, self._held, self._whole, self._first, self._blocks),
            *(times, BLOCK, triton.next_power_of_2(self._blocks)),
            **early(logits, count),
        )

    def advance(self, logits: Tensor, token: Tensor, verdict: tuple[Tensor, Tensor, Tensor], record: Tensor) -> None:
        """Write the emitted tokens' log-probabilities to `record`, a part of the columns of a matrix."""
        accepted, following, _ = verdict
        _advance[(len(token),)](
            *(logits, self._vocab, token, accepted, following, self._whole, self._latest, record),
            *(self._width, record.stride(0), self._first, long(self._width)),
            num_warps=1,
            **early(logits, len(token)),
        )
