"""Text from tokens as they come: only what no later token can change, and all of it in the end.

A token may hold part of a character, so the end of the text so far may still change; and what a token looks like
depends on the one before it, as with the space that begins a word. So a short window of tokens is decoded anew with
every push, and what was already handed out is skipped. The window is cut where the text of its parts, put together,
is its text: there no character spans the cut, and what follows cannot reach behind it.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence

MARK = "\N{REPLACEMENT CHARACTER}"  # what decoders write for bytes that make no character, or not yet
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
        # decoders with a token for each byte judge a run of them as a whole, so a run is final when it has ended
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
    """The same where every token stands for certain bytes, whatever is around it: nothing is decoded twice."""

    def __init__(self, spelt: Callable[[int], bytes]) -> None:
        self._spelt, self._utf8 = spelt, getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._utf8.decode(b"".join(map(self._spelt, ids)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


# vocabularies of bytes write one that is no visible letter of Latin-1 as a later letter, one after the other
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(0x100) if byte not in _VISIBLE]
_BYTES = {chr(byte): byte for byte in _VISIBLE} | {chr(0x100 + n): byte for n, byte in enumerate(_HIDDEN)}


def spelt_bytes(token: str) -> bytes:
    """A token of such a vocabulary; one with a letter that stands for no byte is text as it is."""
    known = [_BYTES.get(letter) for letter in token]
    return token.encode() if None in known else bytes(known)  # type: ignore[arg-type]
