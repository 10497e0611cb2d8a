"""Incremental detokenization: text is returned as soon as no later token can change it.

A token may hold part of a character, so the end of the text may still change. The text of a token also depends on the
token before it, as with the space that begins a word. So each push decodes a short window of tokens again, and skips
the text that was already returned. The window is cut where the texts of its two parts add up to the text of the whole:
there no character spans the cut, and later tokens cannot change what is before it.
"""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

MARK = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that form no character yet
WINDOW = 16  # tokens kept before the window is cut
KEPT = 8  # tokens kept when it is; more than a character can span


class Detokenizer:
    """`push` ids, get final text; `flush` gives the rest. The parts together equal the text decoded at once."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_text: Callable[[int], bool],
        is_byte: Callable[[int], bool],
    ) -> None:
        self._decode, self._is_text, self._is_byte = decode, is_text, is_byte
        self._ids: list[int] = []
        self._sent = 0  # characters of the window's text that were handed out

    def push(self, ids: Iterable[int]) -> str:
        new = [i for i in ids if self._is_text(i)]
        self._ids += new
        # decoders with byte tokens decode a run of them as a whole, so a run is final when it has ended
        if not new or self._is_byte(new[-1]):
            return ""
        text = self._decode(self._ids)
        final = len(text) - text.endswith(MARK)  # only the last mark can still become a character
        out, self._sent = text[self._sent : final], max(self._sent, final)
        if len(self._ids) > WINDOW:
            self._cut(text)
        return out

    def flush(self) -> str:
        """What was held back; the next push begins a new text."""
        out = self._decode(self._ids)[self._sent :] if self._ids else ""
        self._ids, self._sent = [], 0
        return out

    def _cut(self, text: str) -> None:
        for cut in range(len(self._ids) - KEPT, len(self._ids)):
            head, tail = self._decode(self._ids[:cut]), self._decode(self._ids[cut:])
            # SentencePiece decoders drop a space at the start of any text, so one may be missing between the parts
            apart = len(text) - len(head) - len(tail)
            if tail and apart in (0, 1) and text.startswith(head) and text.endswith(tail):
                self._ids, self._sent = self._ids[cut:], self._sent - (len(text) - len(tail))
                return


class ByteDetokenizer(Detokenizer):
    """A detokenizer for vocabularies where each token is a fixed sequence of bytes: nothing is decoded twice."""

    def __init__(self, spelt: Callable[[int], bytes]) -> None:
        self._spelt = spelt
        self._between = True  # whether the bytes so far end with a whole character

    def push(self, ids: Iterable[int]) -> str:
        spelling = b"".join(map(self._spelt, ids))
        if self._between:
            try:
                return spelling.decode()  # most often; the incremental decoder takes several times as long
            except UnicodeDecodeError:
                pass
        text = self._utf8.decode(spelling)
        self._between = not self._utf8.getstate()[0]
        return text

    def flush(self) -> str:
        if self._between:
            return ""
        self._between = True
        return self._utf8.decode(b"", final=True)

    @cached_property
    def _utf8(self) -> IncrementalDecoder:
        return getincrementaldecoder("utf-8")("replace")


class Spellings(dict[int, bytes]):
    """The bytes of tokens. A token that was asked for before is looked up without calling a Python function."""

    def __init__(self, spelt: Callable[[int], bytes]) -> None:
        super().__init__()
        self._spelt = spelt

    def __missing__(self, i: int) -> bytes:
        spelling = self[i] = self._spelt(i)
        return spelling


# byte-level vocabularies write each byte that is not a visible Latin-1 letter as a letter from U+0100 on, in order
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(0x100) if byte not in _VISIBLE]
_BYTES = {chr(byte): byte for byte in _VISIBLE} | {chr(0x100 + n): byte for n, byte in enumerate(_HIDDEN)}


def spelt_bytes(token: str) -> bytes:
    """The bytes of a byte-level token. A token with a letter that maps to no byte is plain text."""
    values = [_BYTES.get(letter) for letter in token]
    return token.encode() if None in values else bytes(values)  # type: ignore[arg-type]
