"""What captured cycles are put together from, whether they draft chains or trees.

Each part holds buffers of fixed size and does one stretch of a cycle in them; what is captured is a sequence of such
stretches. Nothing here reads what the device computed, but `Halves` at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from slipstream.core.shapes import Tensor
from slipstream.drafters.eagle_gpu import EagleKernels
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import Control, chain_layout, keep
from slipstream.kernels.gpu.decoder import Held, Room, embed, logits, walk
from slipstream.kernels.gpu.draw import Laws, Wishes
from slipstream.kernels.gpu.judge import Found
from slipstream.models.gpu_decoder import GpuDecoder, capture

INTEGERS = len(fields(Control))


@dataclass(frozen=True, eq=False)
class Head:
    """A drafter's side of a cycle."""

    kernels: EagleKernels
    held: Held
    features: dict[int, Tensor]  # where the target's states are kept, by layer, [rows, 1, places, hidden]
    ids: Tensor  # its vocabulary
    slot_of: Tensor  # and back: -1 where a token cannot be drafted


class Inputs:
    """What the host says of each row before a cycle."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._words = torch.zeros(INTEGERS, rows, dtype=torch.long, device=device)
        self._numbers = torch.zeros(2, rows, device=device)
        self.control = Control(*self._words)
        self.control.depth.fill_(-1)  # no rows while it is captured
        self.far = torch.zeros(rows, dtype=torch.long, device=device)
        warm, stop = self._numbers
        self.wishes = Wishes(warm, self.control.stream, self.control.start, self.far, stop)

    def load(self, words: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]]) -> None:
        self._words.copy_(torch.tensor(words), non_blocking=True)
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.float32), non_blocking=True)


class Scoring:
    """The target's pass over `width` tokens of each row, their laws, and the states that a head will read."""

    def __init__(self, target: GpuDecoder, held: Held, head: Head | None, rows: int, width: int, parts: int) -> None:
        self._target, self._held, self._head = target, held, head
        device = target.embedding.device
        self.token = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.layout = chain_layout(rows, width, target.heads.chunk, device)
        self.room = Room(target.net, rows * width, parts)
        self.laws = Laws(rows * width, len(target.net.head), device)
        self.choice = torch.zeros_like(self.token)
        kept, following, sound = torch.zeros(3, rows, dtype=torch.long, device=device)
        self.found: Found = kept, following, sound
        self._size = target.embedding.shape[1]
        layers = len(head.features) if head else 0
        self.stack = target.embedding.new_zeros(rows * width, self._size * layers)

    @property
    def chunk(self) -> int:
        return self._target.heads.chunk

    def run(self, tree: bool) -> None:
        target, room, watched = self._target, self.room, {}
        if self._head is not None:
            for n, (layer, held) in enumerate(self._head.features.items()):
                stack = self.stack[:, n * self._size : (n + 1) * self._size]
                watched[layer] = _keeper(self.layout, held, stack, self._head.kernels.scale[n : n + 1])
        embed(self.token.view(-1), target.embedding, room.hidden)
        walk(target.net, room, self.layout, self._held, (0, len(target.net.blocks)), watched, tree)
        logits(target.net, room.stream, self.laws.logits)


class Reading:
    """The head reads what was committed, up to `width` tokens of each row, so that the next draft begins there."""

    def __init__(self, head: Head | None, rows: int, width: int, parts: int, like: Tensor) -> None:
        self._head, device = head, like.device
        self.chunk = head.kernels.net.heads.chunk if head else 1
        self.following = torch.zeros(rows * width, dtype=torch.long, device=device)
        self.end = torch.zeros(rows, dtype=torch.long, device=device)
        self.layout = chain_layout(rows, width, self.chunk, device)
        self.state = torch.zeros(rows, like.shape[1], device=device)
        if head is not None:
            self._room = Room(head.kernels.net, rows * width, parts)
            self._both = like.new_zeros(rows * width, 2 * like.shape[1])

    def run(self, stack: Tensor) -> None:
        if self._head is None:
            return
        self._head.kernels.fuse(stack, self._room.hidden)
        self._head.kernels.step(self.following, self._room, self._both, self.layout, self._head.held)
        torch.index_select(self._room.hidden, 0, self.end, out=self.state)


class Halves:
    """A cycle as two graphs, before and after the draft is there, with the clock read between them."""

    def __init__(self, first: Callable[[], None], second: Callable[[], None], result: Tensor) -> None:
        self._clock, self._result = Clock(result.device), result
        self.drafting = 0.0  # seconds, in the last cycle
        self.begin, self.rest = (capture(part) if self._clock.device else part for part in (first, second))

    def run(self) -> Tensor:
        self._clock.start()
        self.begin()
        self._clock.lap()
        self.rest()
        record = self._result.cpu()  # the one place where the host waits
        self.drafting = self._clock.read()
        return record


class Clock:
    """How long the first half of a cycle took, by the device's own clock where there is one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device.type == "cuda"
        self._events: list[Any] = [_event() for _ in range(2)] if self.device else []
        self._times = [0.0, 0.0]

    def start(self) -> None:
        self._mark(0)

    def lap(self) -> None:
        self._mark(1)

    def _mark(self, n: int) -> None:
        if self.device:
            self._events[n].record()
        else:
            self._times[n] = time.perf_counter()

    def read(self) -> float:
        """Seconds between the two, once the device has been waited for."""
        if self.device:
            return float(self._events[0].elapsed_time(self._events[1])) / 1000
        return self._times[1] - self._times[0]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _keeper(layout: Layout, held: Tensor, stack: Tensor, scale: Tensor) -> Callable[[Tensor], None]:
    def kept(state: Tensor) -> None:
        keep(state, layout, held, stack, scale)

    return kept
