"""Compares speculation with plain decoding of the target, token for token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.audit.check import Check
from slipstream.audit.subject import Pair, Subject
from slipstream.core.tree import Shape
from slipstream.plan.policy.policies import Fixed


def check_replay(
    name: str, subject: Subject, pair: Pair, depths: Sequence[int], length: int = 40, shape: Shape | None = None
) -> Check:
    """The same seeds at several depths. Every row must equal that of depth 0, which is plain decoding."""
    seeds = range(32)

    def texts(depth: int) -> list[list[int]]:
        rows = [subject.row(pair, length, seed=seed) for seed in seeds]
        replace(subject, policy=lambda: Fixed(depth, shape=shape)).run(pair, rows)
        return [row.output for row in rows]

    plain = texts(0)
    apart = [depth for depth in depths if texts(depth) != plain]
    drafts = f"trees of {shape.size}, depths" if shape else "depths"
    detail = f"{len(seeds)} seeds, {length} tokens, {drafts} {', '.join(map(str, depths))}"
    return Check(name, "replay", not apart, detail + (f"; differs at depth {apart}" if apart else ""))
