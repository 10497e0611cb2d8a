"""Short continuations of a prompt as a finite set of outcomes, and their joint law.

A model has far too many continuations to count, so at every place only the likeliest tokens are told apart; another
token, or an end token, ends the outcome there. The probabilities of all outcomes sum to 1, so nothing escapes a test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

REST = -1  # any token that is not told apart
Path = tuple[int, ...]
Laws = Callable[[Sequence[Path]], list[dict[int, float]] | None]
"""Places after the prompt, and for each the probabilities of at least the likeliest tokens."""


@dataclass(frozen=True)
class Continuations:
    """Which tokens are told apart after every path, by a reference law."""

    shown: dict[Path, tuple[int, ...]]
    ends: frozenset[int]
    length: int

    @staticmethod
    def of(laws: Laws, ends: frozenset[int], length: int, width: int) -> Continuations:
        shown: dict[Path, tuple[int, ...]] = {}
        level: list[Path] = [()]
        for _ in range(length):
            found = laws(level)
            assert found is not None, "the reference knows its law everywhere"
            for path, law in zip(level, found, strict=True):
                shown[path] = tuple(sorted(law, key=lambda token: -law[token])[:width])
            level = [(*path, token) for path in level for token in shown[path] if token not in ends]
        return Continuations(shown, ends, length)

    def outcome(self, tokens: Sequence[int]) -> Path:
        path: Path = ()
        for token in tokens[: self.length]:
            if token not in self.shown[path]:
                return (*path, REST)
            path = (*path, token)
            if token in self.ends:
                break
        return path

    def count(self, texts: Iterable[Sequence[int]]) -> Counter[Hashable]:
        return Counter(self.outcome(text) for text in texts)

    def joint(self, laws: Laws) -> dict[Hashable, float] | None:
        """The probability of every outcome; None where a law does not tell a token that is told apart."""
        places = list(self.shown)
        found = laws(places)
        if found is None:
            return None
        law = dict(zip(places, found, strict=True))
        joint: dict[Hashable, float] = {}
        reached: dict[Path, float] = {(): 1.0}
        for path in places:  # shorter ones come first
            at = reached.get(path, 0.0)
            for token in self.shown[path]:
                if token not in law[path]:
                    return None
                after, prob = (*path, token), at * law[path][token]
                whole = len(after) == self.length or token in self.ends
                (joint if whole else reached)[after] = prob
            joint[(*path, REST)] = at * max(0.0, 1 - sum(law[path][token] for token in self.shown[path]))
        return joint


def distance(a: dict[Hashable, float], b: dict[Hashable, float]) -> float:
    """Total variation between two laws."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


def shares(counts: Counter[Hashable]) -> dict[Hashable, float]:
    return {key: count / counts.total() for key, count in counts.items()}


def by_chance(law: dict[Hashable, float], samples: int) -> float:
    """The total variation that samples of the law itself show on average (each share is nearly normal)."""
    return sum(math.sqrt(p * (1 - p) * 2 / math.pi / samples) for p in law.values()) / 2
