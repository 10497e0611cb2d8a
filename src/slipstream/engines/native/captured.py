"""A whole cycle on the device: draft, score, verify and commit as one graph, and one small read at its end.

What it must equal is `Batch`'s own cycle, token for token: the same laws, the same rules, the same noise. The host says
how long each row is and how far it may draft, and learns what was accepted; nothing else crosses over in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.core.noise import Purpose
from slipstream.core.shapes import Float, Tensor
from slipstream.drafters.eagle_gpu import EagleKernels
from slipstream.kernels.gpu.cycle import Control, chain_layout, commit, keep, lay, lay_steps, part
from slipstream.kernels.gpu.decoder import Held, Room, embed, logits, walk
from slipstream.kernels.gpu.draw import Laws, Wishes, choose, draft
from slipstream.kernels.gpu.judge import Found, judge, match, surplus_room
from slipstream.models.gpu_decoder import GpuDecoder, capture

INTEGERS = 6  # of the control: see `Control`


@dataclass(frozen=True)
class Kind:
    """What a graph is captured for."""

    rows: int
    depth: int
    rule: str  # greedy, coupled, token or block
    parts: int  # of the cache


@dataclass(frozen=True, eq=False)
class Head:
    """A drafter's side of a cycle."""

    kernels: EagleKernels
    held: Held
    features: dict[int, Tensor]  # where the target's states are kept, by layer, [rows, 1, places, hidden]
    ids: Tensor  # its vocabulary
    slot_of: Tensor  # and back: -1 where a token cannot be drafted


class Cycle:
    """The buffers of one kind of cycle, and its graph."""

    def __init__(self, kind: Kind, target: GpuDecoder, held: Held, head: Head | None) -> None:
        self.kind, self._target, self._held, self._head = kind, target, held, head
        rows, width, device = kind.rows, kind.depth + 1, target.embedding.device
        self._words = torch.zeros(INTEGERS, rows, dtype=torch.long, device=device)
        self._numbers = torch.zeros(2, rows, device=device)
        self._control = Control(*self._words)
        self._control.depth.fill_(-1)  # no rows while it is captured
        self._far = torch.zeros(rows, dtype=torch.long, device=device)
        self._wishes = Wishes(self._numbers[0], self._control.stream, self._control.start, self._far, self._numbers[1])
        self._token = torch.zeros(rows, width, dtype=torch.long, device=device)
        self._choice = torch.zeros_like(self._token)
        kept, following, sound = torch.zeros(3, rows, dtype=torch.long, device=device)
        self._found: Found = kept, following, sound
        self._layout = chain_layout(rows, width, target.heads.chunk, device)
        self._room = Room(target.net, rows * width, kind.parts)
        self._laws = Laws(rows * width, len(target.net.head), device)
        self._chance = torch.zeros(max(1, kind.depth), rows, device=device)
        self._credit = surplus_room(rows, kind.depth, self._laws)
        self._result = torch.zeros(rows, 2 * width + 2, dtype=torch.float64, device=device)
        self._following = torch.zeros(rows * width, dtype=torch.long, device=device)
        self._end = torch.zeros(rows, dtype=torch.long, device=device)
        self._after = chain_layout(rows, width, head.kernels.net.heads.chunk if head else 1, device)
        self.state = torch.zeros(rows, target.embedding.shape[1], device=device)
        if head is not None:
            self._prepare(head)
        self.drafting = 0.0  # seconds, in the last cycle
        self._clock = Clock(device)
        self._begin, self._rest = (
            capture(part) if self._clock.device else part for part in (self._first, self._second)
        )

    def _prepare(self, head: Head) -> None:
        rows, depth, net, device = self.kind.rows, self.kind.depth, head.kernels.net, self.state.device
        tokens, hidden = rows * (depth + 1), self.state.shape[1]
        self._small, self._wide = Room(net, rows, self.kind.parts), Room(net, tokens, self.kind.parts)
        self._drafts = Laws(rows * max(1, depth), len(net.head), device)
        self._steps = chain_layout(rows * max(1, depth - 1), 1, 1, device)
        like = head.kernels.embedding
        self._stack = like.new_zeros(tokens, hidden * len(head.features))
        self._both = like.new_zeros(rows, 2 * hidden)
        self._both_wide = like.new_zeros(tokens, 2 * hidden)

    def __call__(
        self, words: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]], state: Tensor | None
    ) -> Float[Tensor, "rows record"]:
        """One cycle; `state` is what the head gave at the last slot of each row, where this is not what the last cycle
        left. The record of each row: accepted, next token, whether all had a law, drafted, tokens, their chances."""
        self._words.copy_(torch.tensor(words), non_blocking=True)
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.float32), non_blocking=True)
        if state is not None:
            self.state[: len(state)].copy_(state)
        self._clock.start()
        self._begin()
        self._clock.lap()
        self._rest()
        record = self._result.cpu()  # the one place where the host waits
        self.drafting = self._clock.read() if self.kind.depth else 0.0
        return record

    def _first(self) -> None:
        lay(self._control, self._token, self._far, self._layout, self._target.heads.chunk)
        if self._head is not None and self.kind.depth:
            self._draft(self._head)

    def _second(self) -> None:
        self._score()
        self._verify()
        chunk = self._head.kernels.net.heads.chunk if self._head else 1
        commit(
            *(self._control, self._far, self._token, self._found, self._chance, self._following, self._after),
            *(self._end, self._result, chunk),
        )
        if self._head is not None:
            self._follow(self._head)

    def _draft(self, head: Head) -> None:
        rows, depth, kernels = self.kind.rows, self.kind.depth, head.kernels
        if depth > 1:
            lay_steps(self._control, depth - 1, self._steps)
        kernels.begin(self._small, self.state)
        for n in range(depth):
            if n:
                layout = part(self._steps, (n - 1) * rows, rows)
                kernels.step(self._token[:, n:], self._small, self._both, layout, head.held, depth + 1)
            laws = self._drafts.some(n * rows, rows)
            kernels.logits(self._small, laws.logits)
            purpose = Purpose.FIELD if self.kind.rule == "coupled" else Purpose.DRAFT
            draft(laws, self._wishes, self._token[:, n + 1 :], depth + 1, n, purpose, self._chance[n], head.ids)

    def _score(self) -> None:
        target, room, watched = self._target, self._room, {}
        if self._head is not None:
            scale, size = self._head.kernels.scale, self.state.shape[1]
            for n, (layer, held) in enumerate(self._head.features.items()):
                stack = self._stack[:, n * size : (n + 1) * size]
                watched[layer] = _keeper(self, held, stack, scale[n : n + 1])
        embed(self._token.view(-1), target.embedding, room.hidden)
        walk(target.net, room, self._layout, self._held, (0, len(target.net.blocks)), watched, False)
        logits(target.net, room.stream, self._laws.logits)

    def _verify(self) -> None:
        rule, width = self.kind.rule, self.kind.depth + 1
        drawn = rule not in ("token", "block") or self._head is None or width == 1
        if drawn:  # each slot's own choice says it all
            purpose = Purpose.FIELD if rule == "coupled" else Purpose.EMIT
            choose(self._laws, self._wishes, self._choice, width, purpose, race=rule != "greedy")
            match(self._choice, self._token, self._wishes, self._laws.best, self._found)
            return
        assert self._head is not None
        choose(self._laws, self._wishes, self._choice, width, Purpose.EMIT, race=False)
        judge(
            *(self._laws, self._drafts, self._chance, self._token, self._wishes, self._head.slot_of),
            *(self._credit, rule == "block", self._found),
        )

    def _follow(self, head: Head) -> None:
        """Let the head read what was committed, so that the next draft begins where this one ended."""
        head.kernels.fuse(self._stack, self._wide.hidden)
        head.kernels.step(self._following, self._wide, self._both_wide, self._after, head.held)
        torch.index_select(self._wide.hidden, 0, self._end, out=self.state)


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


def _keeper(cycle: Cycle, held: Tensor, stack: Tensor, scale: Tensor) -> Callable[[Tensor], None]:
    def kept(state: Tensor) -> None:
        keep(state, cycle._layout, held, stack, scale)

    return kept
