"""What a plan's check must know about drafters. The plan cannot import them, so an engine passes it in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from slipstream.core.tree import Siblings
from slipstream.plan.ir.nodes import Value


class Catalogue(Protocol):
    """The drafters that exist, and their options."""

    @property
    def drafters(self) -> Collection[str]:
        """The registered kinds."""

    def siblings(self, kind: str) -> frozenset[Siblings]:
        """How a drafter can draw several candidates after one token."""

    def reads_target(self, kind: str) -> bool:
        """Whether a drafter needs what the target has computed, so that it cannot draft while the target scores."""

    def defaults(self, kind: str) -> Mapping[str, Value]:
        """The options of a drafter with their defaults."""

    def check_options(self, kind: str, options: Mapping[str, Value]) -> None:
        """Raise ValueError for unknown options and unreadable values."""

    def trained_for(self, kind: str, options: Mapping[str, Value]) -> str | None:
        """The name of the target that a trained drafter belongs to; None if it belongs to none or is not known."""
