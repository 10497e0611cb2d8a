"""Finds stop strings in streamed text, also across chunks."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """`feed` text and get the text to show. Text that may become a stop string is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""
        self.hit = False

    def __bool__(self) -> bool:
        return bool(self._strings)

    def feed(self, text: str) -> str:
        if not self._strings:
            return text
        self._held += text
        positions = [at for string in self._strings if (at := self._held.find(string)) >= 0]
        if positions:
            self.hit = True
            shown, self._held = self._held[: min(positions)], ""
            return shown
        keep = max((self._partial(string) for string in self._strings), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The text that was held back, when the text ends without a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _partial(self, string: str) -> int:
        """Length of the longest suffix of the text that is a prefix of the string."""
        longest = min(len(string) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(string[:n])), 0)
