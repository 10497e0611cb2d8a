"""The parts that captured cycles share, whether they draft chains or trees.

Each part holds buffers of fixed size and does one stretch of a cycle in them; what is captured is a sequence of such
stretches. Nothing here reads what the device computed, but `PendingRecord`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.array_types import Int, Tensor
from slipstream.drafters.device.interface import DeviceDraft
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout, hand_over, keep
from slipstream.kernels.gpu.decoder import Held
from slipstream.kernels.gpu.sample import LawBuffers, SamplingInputs
from slipstream.kernels.gpu.verify import VerdictTensors
from slipstream.models.run.gpu.graphs import capture
from slipstream.models.run.gpu.passes import GpuPasses

INTEGERS = len(fields(CycleControl))
REHEARSALS = 4  # of a cycle that was just captured


class CycleInputs:
    """What the host says of each row before a cycle."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._words = torch.zeros(INTEGERS, rows, dtype=torch.long, device=device)
        self._numbers = torch.zeros(5, rows, device=device)
        self.control = CycleControl(*self._words)
        self.control.depth.fill_(-1)  # no rows while it is captured
        self.far = torch.zeros(rows, dtype=torch.long, device=device)
        warm, stop, *limits = self._numbers
        self.sampling = SamplingInputs(warm, self.control.stream, self.control.start, self.far, stop, limits)

    def load(self, words: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]]) -> None:
        self._words.copy_(torch.from_numpy(np.array(words)), non_blocking=True)  # faster than torch's own way
        self._numbers.copy_(torch.from_numpy(np.array(numbers, np.float32)), non_blocking=True)

    def take_over(self, before: CycleInputs, line: Int[Tensor, " rows"], depth: int, spare: int) -> None:
        """Go on after a cycle with other inputs, from what it left there. `line`: of each row there, -1 for none."""
        hand_over(before._words, before._numbers, line, (self._words, self._numbers), depth, spare)


class ScorePass:
    """The target's pass over `width` tokens of each row, their laws, and the states that a head will read."""

    def __init__(
        self, target: GpuPasses, held: Held, draft: DeviceDraft, rows: int, width: int, parts: int, tree: bool = False
    ) -> None:
        self._target, self._held, self._draft = target, held, draft
        device = target.like.device
        self.token = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.layout = chain_layout(rows, width, target.heads.chunk(width, rows * width, parts, tree), device)
        self._pass = target.passing(rows * width, parts)
        self.laws = LawBuffers(rows * width, target.vocab, device)
        self.choice = torch.zeros_like(self.token)
        kept, following, sound = torch.zeros(3, rows, dtype=torch.long, device=device)
        self.verdict: VerdictTensors = kept, following, sound
        self._size = target.like.shape[1]
        self.stack = target.like.new_zeros(rows * width, self._size * len(draft.features))

    def run(self, tree: bool, states: Tensor | None = None) -> None:
        """`states`: the tokens' states before the draft's `first_layer`; None: the pass begins with the tokens."""
        watched = {}
        scale = self._draft.feature_scale
        for n, (layer, held) in enumerate(self._draft.features.items()):
            assert scale is not None, "features come with their scale"
            stack = self.stack[:, n * self._size : (n + 1) * self._size]
            watched[layer] = _keeper(self.layout, held, stack, scale[n : n + 1])
        first, token = (0, self.token.view(-1)) if states is None else (self._draft.first_layer, None)
        if states is not None:
            self._pass.hidden.copy_(states)
            if first - 1 in watched:
                watched[first - 1](self._pass.hidden)
        span = first, self._target.layers
        self._pass.run(token, self.layout, self._held, span, watched, tree, self.laws.logits)


class PendingRecord:
    """The record of a cycle that was launched, [rows, numbers]. It is on its way to the host."""

    def __init__(self, result: Tensor, host: tuple[Tensor, torch.cuda.Event] | None) -> None:
        """`host`: pinned memory for it, and the event that says when it is there; None where the result is on the host
        already."""
        self._event: torch.cuda.Event | None = None
        if host is None:
            self._record = result.clone()
            return
        self._record, self._event = host
        self._record.copy_(result, non_blocking=True)
        self._event.record()

    def read(self, rows: int, columns: int) -> NDArray[np.int64]:
        """The first numbers of the first rows, as integers. The one place where the host waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        record: NDArray[np.int64] = self._record.numpy()[:rows, :columns].astype(np.int64)
        return record

    def read_numbers(self, rows: int, start: int) -> list[list[float]]:
        """The numbers of the first rows from a column on. Called after `read`."""
        lines: list[list[float]] = self._record.numpy()[:rows, start:].tolist()
        return lines


class CapturedCycle:
    """A cycle as one graph. Two may be under way: the record of the first is read while the second runs."""

    def __init__(self, run: Callable[[], None], result: Tensor) -> None:
        self._result, self._recorded = result, result.is_cuda
        self.replay = capture(run) if self._recorded else run
        self._hosts = [
            (torch.empty(result.shape, dtype=result.dtype, pin_memory=True), torch.cuda.Event())  # type: ignore[no-untyped-call]
            for _ in range(2 * self._recorded)
        ]

    def launch(self) -> PendingRecord:
        self.replay()
        self._hosts.reverse()
        return PendingRecord(self._result, self._hosts[0] if self._hosts else None)

    def rehearse(self) -> float | None:
        """Seconds of a cycle of no rows, which takes about as long as one of some; None where nothing is recorded."""
        times = []
        for _ in range(REHEARSALS if self._recorded else 0):
            began = time.perf_counter()
            self.launch().read(1, 1)
            times.append(time.perf_counter() - began)
        return min(times, default=None)


def _keeper(layout: Layout, held: Tensor, stack: Tensor, scale: Tensor) -> Callable[[Tensor], None]:
    def kept(state: Tensor) -> None:
        keep(state, layout, held, stack, scale)

    return kept
