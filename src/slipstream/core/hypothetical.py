"""A row whose text is continued by drafted tokens: the committed text of an inner stage of a draft.

Drafters and models read it as any other row. After a verdict of the outer cycle, `cut` and `follow` make it agree with
the real row again. Tokens that were drafted and not committed are then no longer part of its text.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.array_types import Bool, Tensor
from slipstream.core.types import Constraint, Row


class HypotheticalRow(Row):
    """A view of `real`, with the same request and the same seed."""

    def __init__(self, real: Row) -> None:
        self.real = real
        self.request, self.seed, self.sample = real.request, real.seed, real.sample
        self.tokens, self.origins = list(real.tokens), []
        self._longest = real._longest
        self.finish_reason = None
        self.constraint = None if real.constraint is None else DraftedConstraint(self, real.constraint)
        self._agreed = real.length  # so many tokens are certainly those of `real`

    @property
    def drafted(self) -> list[int]:
        """The tokens after the real row's text."""
        return self.tokens[self.real.length :]

    def common(self, path: Sequence[int]) -> int:
        """How many leading tokens are those of the real row, and of `path` after it."""
        size, text = self._agreed, [*self.real.tokens[self._agreed :], *path]
        for token, own in zip(text, self.tokens[self._agreed :], strict=False):
            if token != own:
                break
            size += 1
        return size

    def cut(self, length: int) -> None:
        """Remove the tokens from position `length` on."""
        del self.tokens[length:]
        self.origins, self.finish_reason = [], None

    def follow(self, path: Sequence[int]) -> None:
        """Append what is missing of the real row's text and of `path` after it. Call `cut` before."""
        self.tokens += self.real.tokens[self.length :]
        self.tokens += path[self.length - self.real.length :]
        self._agreed = self.real.length

    def doubt(self, length: int) -> None:
        """The real row's text changed from position `length` on."""
        self._agreed = min(self._agreed, length)


class DraftedConstraint(Constraint):
    """The grammar of the real row, after the drafted tokens of its view."""

    def __init__(self, row: HypotheticalRow, real: Constraint) -> None:
        self._row, self._real = row, real

    def allowed(self, path: Sequence[int]) -> Bool[Tensor, " vocab"] | None:
        return self._real.allowed([*self._row.drafted, *path])

    def advance(self, tokens: Sequence[int]) -> None:
        """Nothing is committed: the drafted tokens are read from the row."""
