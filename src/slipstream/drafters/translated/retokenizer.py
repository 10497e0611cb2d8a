"""The text of a row in the draft model's tokens.

The committed tokens of the target are spelt as bytes, and the bytes are tokenized again. A token of the target may end
inside a character. The bytes of an incomplete character are given to the draft model as byte tokens.

Only the end of the text is tokenized again. It begins where tokens of both vocabularies begin at a space or a line end,
which is where tokenizers separate words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from slipstream.models.text.codec import TextCodec

KEPT = 32  # tokens at the end that are tokenized again


class Retokenizer:
    """The draft model's tokens of one row."""

    def __init__(self, target: TextCodec, draft: TextCodec) -> None:
        self._target, self._draft = target, draft
        self._stable: list[int] = []  # the draft model's tokens of the beginning, which is not tokenized again
        self._read = 0  # the target's tokens of the beginning

    def tokens(self, text: Sequence[int]) -> list[int] | None:
        """The draft model's tokens of the target's tokens `text`; None if it has no token for some byte."""
        spelt = [self._target.spelling(token) for token in text[self._read :]]
        tail = self._draft.encode_bytes(b"".join(spelt), begin=not self._read)
        if tail is None:
            return None
        tokens = [*self._stable, *tail]
        if len(spelt) > 3 * KEPT:
            self._settle(spelt, tail)
        return tokens

    def rewind(self, length: int) -> None:
        """The row's text changed from position `length` on."""
        if length < self._read:
            self._stable, self._read = [], 0

    def _settle(self, spelt: Sequence[bytes], tail: Sequence[int]) -> None:
        """Make the beginning of the tail stable, up to a place where tokens of both vocabularies begin a word."""
        begins = tail[:1] == self._draft.encode_bytes(b"", begin=True) and not self._read
        own = [b"" if begins and n == 0 else self._draft.spelling(token) for n, token in enumerate(tail)]
        if b"".join(own) != b"".join(spelt):  # the tokenizer changes the text, so places cannot be compared
            return
        places = {end: n for n, end in enumerate(accumulate(map(len, own)), 1)}
        ends = list(accumulate(map(len, spelt)))
        for n in range(len(spelt) - KEPT, 0, -1):
            if ends[n - 1] in places and spelt[n][:1] in (b" ", b"\n"):
                self._stable += tail[: places[ends[n - 1]]]
                self._read += n
                return
