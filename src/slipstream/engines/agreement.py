"""The result of comparing an output with plain decoding: where the two differ, and whether a difference is a tie.

Outside invariant mode, passes over different numbers of tokens round differently. If the scores of the two best tokens
differ by less than that rounding error, speculation and plain decoding may choose differently and both be right. This
is called a flipped tie. Every other difference is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Divergence:
    """A position where plain decoding chose another token.

    Scores are logits at temperature 0; at other temperatures they are log p - log E, whose maximum is drawn."""

    position: int  # in the output
    tokens: tuple[int, int]  # speculation's, plain decoding's
    gap: float  # between the scores of the two tokens
    behind: float  # from the best score to the worse of the two
    numerics: float  # the rounding error of the scores

    @property
    def tie(self) -> bool:
        return self.behind <= self.numerics


@dataclass(frozen=True)
class Agreement:
    """All positions where plain decoding, given the same text so far, chooses another token. The list ends with the
    first difference that is not a tie."""

    identical: bool
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def ties(self) -> int:
        return sum(divergence.tie for divergence in self.divergences)

    @property
    def real(self) -> Divergence | None:
        return next((divergence for divergence in self.divergences if not divergence.tie), None)
