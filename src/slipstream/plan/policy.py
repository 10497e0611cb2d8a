"""Policies: how far to draft in the coming cycle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.core.interfaces import Policy
from slipstream.core.types import Budget, Draft, Row, Verdict


class Fixed(Policy):
    """The same depth always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0) -> None:
        self._budget = Budget(depth, stop_below=stop_below)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)


class Costs:
    """What passes cost on this machine, learnt as they happen: seconds by tokens in a pass, seconds per drafted step.

    A size never seen is read off the straight line between its neighbours, and beyond them by their slope. The mean
    follows slowly, so one hiccup does not move it.
    """

    def __init__(self) -> None:
        self._score: dict[int, float] = {}
        self.step = 0.0  # seconds to draft one step, all rows together

    def learn(self, drafting: float, scoring: float, tokens: int, steps: int) -> None:
        old = self._score.get(tokens, scoring)
        self._score[tokens] = min(scoring, old + 0.1 * (scoring - old)) if scoring < old else old + 0.1 * (scoring - old)
        if steps:
            each = drafting / steps
            self.step = each if not self.step else self.step + 0.1 * (each - self.step)

    def score(self, tokens: int) -> float:
        """Seconds of a target pass over so many tokens."""
        known = sorted(self._score)
        if not known:
            return 1.0
        below = max((n for n in known if n <= tokens), default=None)
        above = min((n for n in known if n >= tokens), default=None)
        if below is None or above is None:
            return self._score[above if below is None else below]  # type: ignore[index]
        if below == above:
            return self._score[below]
        share = (tokens - below) / (above - below)
        return self._score[below] * (1 - share) + self._score[above] * share


@dataclass
class Trust:
    """What is believed of one row's drafts: the chance that a drafted token is accepted, given the one before was."""

    rate: float = 0.7
    quiet: int = 0  # plain cycles since the last draft
    wait: int = 4  # plain cycles before the next attempt; doubles while attempts fail

    def learn(self, drafted: int, accepted: int) -> None:
        tried = min(drafted, accepted + 1)  # tokens beyond the first rejection say nothing
        for i in range(tried):
            self.rate += 0.15 * ((i < accepted) - self.rate)
        self.wait = max(4, self.wait // 2) if accepted else min(128, self.wait * 2)
        self.quiet = 0


class Adaptive(Policy):
    """The depths that maximise emitted tokens per second: zero where drafting does not pay.

    Rows share a pass, so they are decided together: starting from plain decoding for all, the drafted token most likely
    to be emitted is added, again and again, and the best point on the way is taken. Rows left plain are tried again now
    and then, more and more rarely while it fails, so a hopeless text costs next to nothing.
    """

    def __init__(self, deepest: int = 8) -> None:
        if deepest < 1:
            raise ValueError(f"deepest is {deepest}; it must be 1 or more")
        self.deepest, self.costs = deepest, Costs()
        self._trust: dict[Row, Trust] = defaultdict(Trust)
        self._steps = 0

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        self._trust = defaultdict(Trust, {row: self._trust[row] for row in rows})
        depth = self._best(rows, self._trust)
        for row in rows:
            trust = self._trust[row]
            trust.quiet += 1
            if depth[row] == 0 and trust.quiet > trust.wait:
                depth[row], trust.quiet = 2, 0
        return [Budget(depth[row]) for row in rows]

    def _best(self, rows: Sequence[Row], trust: Mapping[Row, Trust]) -> dict[Row, int]:
        depth = dict.fromkeys(rows, 0)
        gain = {row: trust[row].rate for row in rows}  # chance that the next drafted token of the row is emitted
        emitted, tokens = float(len(rows)), len(rows)
        best, rate = dict(depth), emitted / self.costs.score(tokens)
        for _ in range(self.deepest * len(rows)):
            row = max((r for r in rows if depth[r] < self.deepest), key=lambda r: gain[r], default=None)
            if row is None:
                break
            emitted += gain[row]
            tokens += 1
            depth[row] += 1
            gain[row] *= trust[row].rate
            seconds = self.costs.score(tokens) + self.costs.step * max(depth.values())
            if emitted / seconds > rate:
                best, rate = dict(depth), emitted / seconds
        return best

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        drafted = [0] * len(rows)
        for r, _ in draft.tree.lists:
            drafted[r] += 1
        self._steps = max(self._steps, *drafted)
        for row, tried, accepted in zip(rows, drafted, verdict.accepted.tolist(), strict=True):
            if tried:
                self._trust[row].learn(tried, accepted)

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        self.costs.learn(drafting, scoring, tokens, self._steps)
        self._steps = 0
