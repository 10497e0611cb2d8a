"""Short continuations of a prompt as a finite set of outcomes, and their joint law.

A model has too many continuations to count. So at every position only the most probable tokens are distinguished. Any
other token, or an end token, ends the outcome. The probabilities of all outcomes sum to 1, so a test covers all texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

REST = -1  # any token that is not distinguished
Path = tuple[int, ...]
Laws = Callable[[Sequence[Path]], list[dict[int, float]] | None]
"""The probabilities of at least the most probable tokens after each path; None if they are not known."""


@dataclass(frozen=True)
class Continuations:
    """The tokens that are distinguished after every path, chosen by a reference law."""

    shown: dict[Path, tuple[int, ...]]
    ends: frozenset[int]
    length: int

    @staticmethod
    def of(laws: Laws, ends: frozenset[int], length: int, width: int) -> Continuations:
        shown: dict[Path, tuple[int, ...]] = {}
        level: list[Path] = [()]
        for _ in range(length):
            level_laws = laws(level)
            assert level_laws is not None, "the reference knows its law everywhere"
            for path, law in zip(level, level_laws, strict=True):
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
        """The probability of every outcome; None if a law lacks a token that is distinguished."""
        paths = list(self.shown)
        path_laws = laws(paths)
        if path_laws is None:
            return None
        law = dict(zip(paths, path_laws, strict=True))
        joint: dict[Hashable, float] = {}
        reached: dict[Path, float] = {(): 1.0}
        for path in paths:  # shorter ones come first
            at = reached.get(path, 0.0)
            for token in self.shown[path]:
                if token not in law[path]:
                    return None
                after, prob = (*path, token), at * law[path][token]
                complete = len(after) == self.length or token in self.ends
                (joint if complete else reached)[after] = prob
            joint[(*path, REST)] = at * max(0.0, 1 - sum(law[path][token] for token in self.shown[path]))
        return joint


def distance(a: dict[Hashable, float], b: dict[Hashable, float]) -> float:
    """Total variation between two laws."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


def shares(counts: Counter[Hashable]) -> dict[Hashable, float]:
    return {key: count / counts.total() for key, count in counts.items()}


def by_chance(law: dict[Hashable, float], samples: int) -> float:
    """The mean total variation between the law and samples of it (each share is approximately normal)."""
    return sum(math.sqrt(p * (1 - p) * 2 / math.pi / samples) for p in law.values()) / 2
