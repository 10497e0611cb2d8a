"""The device form of drafters that run on the host and propose fixed tokens, such as n-gram lookup.

The host drafts before each captured cycle. The graph reads the drafted tokens, scores and verifies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch

from slipstream.core.array_types import Tensor
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDraft, DeviceDrafter


@runtime_checkable
class ChainSource(Protocol):
    """A drafter on the host that drafts one chain for each row."""

    def chains(self, rows: Sequence[Row], budget: Sequence[Budget]) -> list[list[int]]: ...


class HostDraft(DeviceDraft):
    """Tokens drafted by the host, each with probability 1."""

    on_host = True


class HostDeviceDrafter(DeviceDrafter):
    """A host drafter between captured cycles."""

    whole_vocabulary = True

    def __init__(self, drafter: ChainSource) -> None:
        self._drafter, self._tokens = drafter, list[list[int]]()
        self._drafted: list[list[int]] | None = None  # drafted by `ready`, before the size of the cycle was chosen

    def ready(self, rows: Sequence[Row], depth: int) -> list[int]:
        self._drafted = self._drafter.chains(rows, [Budget(depth)] * len(rows))
        return [len(tokens) for tokens in self._drafted]

    def draft_on_host(self, rows: Sequence[Row], budget: Sequence[Budget]) -> Sequence[Budget]:
        drafted, self._drafted = self._drafted, None
        if drafted is None:
            drafted = self._drafter.chains(rows, [replace(row_budget, shape=None) for row_budget in budget])
        self._tokens = [tokens[: row_budget.depth] for tokens, row_budget in zip(drafted, budget, strict=True)]
        return [replace(row_budget, depth=len(tokens)) for row_budget, tokens in zip(budget, self._tokens, strict=True)]

    def part(self) -> HostDraft:
        return HostDraft()

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        depth = cycle.key.depth
        return torch.tensor([tokens[:depth] + [0] * (depth - len(tokens)) for tokens in self._tokens]), 0
