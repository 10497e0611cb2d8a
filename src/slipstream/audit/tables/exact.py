"""The output law of the shipped loop by enumeration, against the joint law of the target's table.

After any number of cycles the text so far, continued by plain decoding, must have the target's joint law. So all
outcomes of two cycles are enumerated, each is continued with the target's own probabilities, and the result is compared
with the target's joint law of the same length, sequence by sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from slipstream.audit.check import Check
from slipstream.audit.subject import Joint, Pair, Subject
from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.interfaces import Policy
from slipstream.core.types import Budget, Draft, Row, Verdict

TOLERANCE = 1e-12


def check_cycles(name: str, subject: Subject, pair: Pair, depth: int | None = None, cycles: int = 2) -> Check:
    """Enumerate whole cycles. `depth`: the largest depth of the subject's policy, if it is not `subject.depth`."""
    length = cycles * ((subject.depth if depth is None else depth) + 1)
    observed: Joint = defaultdict(float)
    faults: set[str] = set()
    for outcome in outcomes(
        lambda: subject.row(pair, 1 << 20), lambda rows, noise: subject.run(pair, rows, cycles, noise)
    ):
        observed[tuple(outcome.row.output)] += outcome.prob
        faults |= outcome.faults
    if subject.process is not None:
        return _compare(name, subject.process_joint(pair, cycles), observed, faults)
    return _compare(name, subject.joint(pair, length), subject.joint(pair, length, observed), faults)


def check_endings(
    name: str, subject: Subject, pair: Pair, max_tokens: int = 4, end: int = 0, min_tokens: int = 0
) -> Check:
    """Enumerate to the end of the text: an end token or the limit, at any position of a draft."""
    limits: dict[str, Any] = {"ends": frozenset({end}), "min_tokens": min_tokens}
    observed: Joint = defaultdict(float)
    faults: set[str] = set()
    for outcome in outcomes(
        lambda: subject.row(pair, max_tokens, **limits), lambda rows, noise: subject.run(pair, rows, None, noise)
    ):
        observed[tuple(outcome.row.output)] += outcome.prob
        faults |= outcome.faults
    expected: Joint = defaultdict(float)
    for text, probability in subject.joint(pair, max_tokens, **limits).items():
        cut = text.index(end) + 1 if end in text else max_tokens
        expected[text[:cut]] += probability
    return _compare(name, expected, observed, faults)


def _compare(name: str, expected: Joint, observed: Joint, faults: set[str]) -> Check:
    worst = max(abs(expected.get(text, 0.0) - observed.get(text, 0.0)) for text in expected.keys() | observed.keys())
    detail = f"{len(expected)} sequences, largest deviation {worst:.1e}"
    return Check(name, "exact", worst <= TOLERANCE and not faults, "; ".join([detail, *sorted(faults)]))


class HistoryPolicy(Policy):
    """An adaptive policy whose depth depends on the accepted count and the drafted tokens of the last cycle."""

    def __init__(self, depth: int = 2) -> None:
        self._depth = depth
        self._memory: dict[Row, int] = {}

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [Budget(self._memory.get(row, self._depth) % (self._depth + 1)) for row in rows]

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        seen = [0] * len(rows)
        for (r, _), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
            seen[r] += token
        for row, tokens, accepted in zip(rows, seen, verdict.accepted.tolist(), strict=True):
            self._memory[row] = tokens + accepted
