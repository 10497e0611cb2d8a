"""How often guesses come true, by the number of matched tokens: what a drafter knows of a guess before it is scored.

A guess after one equal token is mostly wrong, one after thirty is mostly right. Guesses that were left out count too:
the text tells whether they would have been accepted, so nothing has to be drafted to find out.
"""

from __future__ import annotations

FIRST_CHANCES = (0.2, 0.4, 0.6, 0.75, 0.85, 0.9)  # of 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, and more matched tokens
PRIOR = 6.0  # guesses that these count as
MEMORY = 64.0  # guesses that a chance rests on at most


class MatchRecord:
    """The chance that the first token of a guess is accepted."""

    def __init__(self) -> None:
        self._chances = list(FIRST_CHANCES)
        self._weights = [PRIOR] * len(FIRST_CHANCES)

    def chance(self, matched: int) -> float:
        return self._chances[_kind(matched)]

    def learn(self, matched: int, came_true: bool) -> None:
        kind = _kind(matched)
        self._weights[kind] = min(self._weights[kind] + 1, MEMORY)
        self._chances[kind] += (came_true - self._chances[kind]) / self._weights[kind]


def _kind(matched: int) -> int:
    return min(max(1, matched).bit_length(), len(FIRST_CHANCES)) - 1
