"""What the host keeps of a drafter between cycles that run on the device, so that both its ways see the same caches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from slipstream.core.array_types import Tensor
from slipstream.core.interfaces import Drafter
from slipstream.core.types import Budget, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.eagle.drafter import Eagle
from slipstream.drafters.eagle.gpu_layer import GpuEagleLayer
from slipstream.drafters.none import NoDrafter
from slipstream.drafters.per_row import PerRow
from slipstream.engines.native.captured.draft_steps import DraftModelState, HeadState, HostDraft, read_slots
from slipstream.engines.native.captured.result import CycleResult
from slipstream.models.run.gpu_passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel

MOST = 8192  # slots that a head reads together


class DeviceDrafter(ABC):
    """One drafter."""

    drafts, branches = True, False  # whether it drafts anything, and trees, on the device
    context: int | None = None  # what it reads at most

    @property
    def version(self) -> int:
        """Of the places its cache lies at."""
        return 0

    def ready(self, rows: Sequence[Row], depth: int) -> list[int] | None:
        """Tokens that each row has to draft, where that is known beforehand."""
        return None

    def behind(self, rows: Sequence[Row]) -> int:
        """Tokens that it would have to read before it drafts, beyond the usual ones."""
        return 0

    def guess(self, rows: Sequence[Row], budget: Sequence[Budget]) -> Sequence[Budget]:
        """How far rows are drafted, where the host does it."""
        return budget

    def part(self, places: int) -> HeadState | DraftModelState | HostDraft | None:
        """Its side of a cycle, with room for so many places in its cache."""
        return None

    def index(self, row: Row) -> int:
        """Where a row lies in its cache."""
        return 0

    @abstractmethod
    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        """Be where a cycle begins: a state for it, where it is not what the last cycle left, and how many tokens had to
        be read for that."""

    @abstractmethod
    def commit(self, rows: Sequence[Row], budget: Sequence[Budget], told: Sequence[CycleResult], cycle: Any) -> None:
        """What the cycle came to, before the rows grow by it."""


class NoDeviceDrafter(DeviceDrafter):
    drafts = False

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        return None, 0

    def commit(
        self, rows: Sequence[Row], budget: Sequence[Budget], told: Sequence[CycleResult], cycle: Any
    ) -> None: ...


class HostDraftState(DeviceDrafter):
    """A drafter that lives on the host and is sure of every token."""

    def __init__(self, drafter: PerRow) -> None:
        self._drafter, self._tokens = drafter, list[list[int]]()
        self._ahead: list[list[int]] | None = None  # guessed before how many are wanted was known

    def ready(self, rows: Sequence[Row], depth: int) -> list[int]:
        self._ahead = self._drafter.chains(rows, [Budget(depth)] * len(rows))
        return [len(words) for words in self._ahead]

    def guess(self, rows: Sequence[Row], budget: Sequence[Budget]) -> Sequence[Budget]:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            ahead = self._drafter.chains(rows, [replace(spend, shape=None) for spend in budget])
        self._tokens = [words[: spend.depth] for words, spend in zip(ahead, budget, strict=True)]
        return [replace(spend, depth=len(words)) for spend, words in zip(budget, self._tokens, strict=True)]

    def part(self, places: int) -> HostDraft:
        return HostDraft()

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        depth = cycle.kind.depth
        return torch.tensor([words[:depth] + [0] * (depth - len(words)) for words in self._tokens]), 0

    def commit(
        self, rows: Sequence[Row], budget: Sequence[Budget], told: Sequence[CycleResult], cycle: Any
    ) -> None: ...


class EagleDeviceDrafter(DeviceDrafter):
    branches = True

    def __init__(self, drafter: Eagle, target: TorchModel, passes: GpuPasses) -> None:
        self._drafter, self._target, self._like = drafter, target, passes.like
        slots, words = drafter.slots, drafter.vocabulary
        self._kernels = GpuEagleLayer(slots.net, slots.embedding, target.context)
        self._slot_of = inverse(words.ids, words.size, target.device)
        self._left: tuple[dict[Row, tuple[int, int]], Any] | None = None  # place and length of each row in a cycle

    @property
    def version(self) -> int:
        return self._drafter.slots.cache.version

    def part(self, places: int) -> HeadState:
        slots, heads = self._drafter.slots, self._kernels.net.heads
        like = slots.embedding.new_empty(1, heads.kv_heads, 1, heads.dim)
        slots.cache.reserve(places)
        features = self._target.feature_places(self._drafter.needs.features, self._like)
        held = [slots.cache.layer(0, like, like)]
        return HeadState(self._kernels, held, features, self._drafter.vocabulary.ids, self._slot_of)

    def index(self, row: Row) -> int:
        return self._drafter.slots.index(row)

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        """What the head gave at the last slot of each row: what the last cycle left, or read anew."""
        (left, before), self._left = self._left or ({}, None), None
        if before is None or any(row not in left or left[row][1] != row.length for row in rows):
            return self._ends(rows)
        index = [left[row][0] for row in rows]
        if before is cycle and index == list(range(len(rows))):
            return None, 0
        return before.state[torch.tensor(index, device=before.state.device)], 0

    def _ends(self, rows: Sequence[Row]) -> tuple[Tensor, int]:
        """Catch up with the rows: what the head gives at their last slots, and how many slots it read."""
        head, pieces = self.part(max(row.length for row in rows)), [self._drafter.slots.rest(row) for row in rows]
        found, begin = list[Tensor](), 0
        while begin < len(rows):
            end, read = begin + 1, len(pieces[begin])
            while end < len(rows) and read + len(pieces[end]) <= MOST:
                read, end = read + len(pieces[end]), end + 1
            index = [self._target.index(row) for row in rows[begin:end]]
            found.append(read_slots(head, pieces[begin:end], index))
            begin = end
        return torch.cat(found), sum(map(len, pieces))

    def commit(self, rows: Sequence[Row], budget: Sequence[Budget], told: Sequence[CycleResult], cycle: Any) -> None:
        lengths = [row.length + len(one.path) + 1 for row, one in zip(rows, told, strict=True)]
        for row, length in zip(rows, lengths, strict=True):
            self._drafter.slots.hold(row, length - 1)
        self._left = {row: (n, length) for n, (row, length) in enumerate(zip(rows, lengths, strict=True))}, cycle


class DraftModelDevice(DeviceDrafter):
    def __init__(self, drafter: DraftModel, passes: GpuPasses) -> None:
        self._drafter, self._passes, device = drafter, passes, drafter.model.device
        known = torch.arange(min(passes.vocab, drafter.vocab), device=device)
        self._ids = known if drafter.ids is None else drafter.ids.to(device)
        self._slot_of = inverse(self._ids, drafter.vocab, device)
        self.context = drafter.model.context

    @property
    def version(self) -> int:
        return self._drafter.model.cache.version

    def part(self, places: int) -> DraftModelState:
        model = self._drafter.model
        model.make_room(places)
        return DraftModelState(self._passes, self._passes.held(model.cache), self._ids, self._slot_of)

    def index(self, row: Row) -> int:
        return self._drafter.model.index(row)

    def behind(self, rows: Sequence[Row]) -> int:
        """A cycle reads the last two tokens of a row."""
        cached = self._drafter.model.cached
        return sum(max(0, row.length - 2 - cached(row)) for row in rows)

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        """What is missing is read now."""
        model = self._drafter.model
        late = [row for row, spend in zip(rows, budget, strict=True) if spend.depth > 0 and self.behind([row])]
        missing = self.behind(late)
        while late:
            model.prefill(late, model.prefill_chunk)
            late = [row for row in late if self.behind([row])]
        return None, missing

    def commit(self, rows: Sequence[Row], budget: Sequence[Budget], told: Sequence[CycleResult], cycle: Any) -> None:
        self._drafter.stepped(rows, [spend.depth for spend in budget], [one.kept for one in told])


def side_of(drafter: Drafter, target: TorchModel, passes: GpuPasses) -> DeviceDrafter | None:
    """None where a drafter's steps cannot be part of a cycle."""
    if isinstance(drafter, NoDrafter):
        return NoDeviceDrafter()
    if isinstance(drafter, PerRow):
        return HostDraftState(drafter)
    if isinstance(drafter, Eagle):
        return EagleDeviceDrafter(drafter, target, passes)
    if isinstance(drafter, DraftModel) and isinstance(own := drafter.model.decoder, GpuPasses):
        return DraftModelDevice(drafter, own)
    return None


def inverse(ids: Tensor, vocab: int, device: torch.device) -> Tensor:
    """Where each token stands among `ids`; -1 where it does not."""
    found = torch.full((vocab,), -1, device=device)
    found[ids] = torch.arange(len(ids), device=device)
    return found
