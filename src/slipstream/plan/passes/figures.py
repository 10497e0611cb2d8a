"""The figures that passes decide by: tokens per second of drafters, depths, trees and stages on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.plan.ir.nodes import PlanError

FRONT = "ngram"  # the drafter that is tried in front of others
MARGIN = 1.02  # a drafter must be faster than plain decoding by this factor to be chosen


@dataclass(frozen=True)
class MeasuredDepth:
    """One drafter at one depth: chains, or trees of so many nodes."""

    depth: int
    tokens_per_second: float
    tau: float
    nodes: int = 0  # 0: chains
    joules: float | None = None  # per token; None: not measured


@dataclass(frozen=True)
class Variant:
    """A drafter with other options, at its fastest depth. `point` None: it was not measured, and `reason` says why.

    `overlap`: it drafts while the target scores."""

    options: Mapping[str, Any]
    point: MeasuredDepth | None = None
    reason: str = ""
    overlap: bool = False


@dataclass(frozen=True)
class Figures:
    """Plain decoding, and drafters by depth, measured in turns on the same prompts. `options` are the drafters' own.

    `staged`: drafters with `FRONT` in front of them. `variants`: by pass and drafter. `energy`: where joules come from;
    an estimate says so."""

    model: str
    plain: float  # tokens per second
    drafters: Mapping[str, tuple[MeasuredDepth, ...]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    staged: Mapping[str, MeasuredDepth] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Variant]] = field(default_factory=dict)
    plain_joules: float | None = None  # per token
    energy: str = ""

    def best_depth(self, kind: str) -> MeasuredDepth:
        """The fastest chain of a drafter."""
        return max((point for point in self.drafters[kind] if not point.nodes), key=_speed)

    def best_tree(self, kind: str) -> MeasuredDepth | None:
        """The fastest tree of a drafter; None if it is not clearly faster than its fastest chain."""
        tree = max((point for point in self.drafters[kind] if point.nodes), key=_speed, default=None)
        faster = tree is not None and tree.tokens_per_second >= MARGIN * self.best_depth(kind).tokens_per_second
        return tree if faster else None

    def best_stage(self, kind: str) -> MeasuredDepth | None:
        """The drafter with `FRONT` in front of it; None if this is not clearly faster."""
        stage = self.staged.get(kind)
        faster = stage is not None and stage.tokens_per_second >= MARGIN * self.best_depth(kind).tokens_per_second
        return stage if faster else None

    def best_drafter(self) -> str | None:
        """The drafter with the fastest depth; None if none is clearly faster than plain decoding."""
        best = max(self.drafters, key=lambda kind: self.best_depth(kind).tokens_per_second, default=None)
        if best is None or self.best_depth(best).tokens_per_second < MARGIN * self.plain:
            return None
        return best

    def frugal(self, latency: float | None) -> tuple[str, MeasuredDepth]:
        """The drafter, or none, with the least joules per token among those within `latency` seconds per token."""
        ways = [("none", MeasuredDepth(0, self.plain, 1.0, joules=self.plain_joules))]
        ways += [(kind, point) for kind, points in self.drafters.items() for point in points]
        fast = [way for way in ways if latency is None or 1 / way[1].tokens_per_second <= latency]
        if not fast:
            best = 1000 / max(point.tokens_per_second for _, point in ways)
            bound = 1000 * (latency or 0.0)
            raise PlanError(f"nothing decodes within {bound:g} ms per token; the fastest takes {best:.1f} ms")
        return min(fast, key=lambda way: way[1].joules or 0.0)

    def shown(self, kind: str) -> str:
        """What was measured of a drafter, for people."""
        points = ", ".join(
            f"{_way(point)}: {point.tokens_per_second:.1f} (tau {point.tau:.2f})" for point in self.drafters[kind]
        )
        return f"{kind} {points} tokens/s; plain {self.plain:.1f}"


def _speed(point: MeasuredDepth) -> float:
    return point.tokens_per_second


def _way(point: MeasuredDepth) -> str:
    return f"tree of {point.nodes}" if point.nodes else f"depth {point.depth}"
