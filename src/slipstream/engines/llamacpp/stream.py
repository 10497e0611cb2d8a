"""Reads the server's event stream: the tokens of each cycle, and how many of them were drafted.

Two things the server leaves out are put back. Tokens that end inside a character are not in the stream, only counted;
they are found by the bytes of the character. And tokens come one by one: those of one cycle share a time stamp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slipstream.engines.base import Logprob
from slipstream.models.text.codec import BYTE, TextCodec

LONGEST = 4  # bytes of a character in UTF-8


@dataclass(frozen=True)
class StreamCycle:
    tokens: list[int]
    drafted: int
    accepted: int
    logprobs: list[Logprob]


def events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


@dataclass
class StreamReader:
    """Events in, cycles out."""

    vocabulary: ByteVocabulary
    seen: int = 0
    drafted: int = 0
    accepted: int = 0
    stamp: float = -1.0
    due: int = 0  # tokens of this cycle that are still to come
    cycle: StreamCycle = field(default_factory=lambda: StreamCycle([], 0, 0, []))

    def feed(self, event: Mapping[str, Any]) -> Iterator[StreamCycle]:
        """The cycles that are whole now."""
        tokens = self._tokens(event)
        timings = event.get("timings") or {}
        if tokens and timings.get("predicted_ms") != self.stamp:
            yield from self.flush()
            drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
            self.cycle = StreamCycle([], drafted - self.drafted, accepted - self.accepted, [])
            self.drafted, self.accepted, self.stamp = drafted, accepted, timings.get("predicted_ms", -1.0)
            self.due = self.cycle.accepted + 1
        self.cycle.tokens.extend(tokens)
        self.cycle.logprobs.extend(map(_logprob, event.get("completion_probabilities") or ()))
        self.due -= len(tokens)
        if self.due <= 0:
            yield from self.flush()

    def flush(self) -> Iterator[StreamCycle]:
        whole, self.cycle = self.cycle, StreamCycle([], 0, 0, [])
        if whole.tokens:
            yield whole

    def _tokens(self, event: Mapping[str, Any]) -> list[int]:
        tokens = list(event.get("tokens") or ())
        if not tokens:
            return []
        lost = event["tokens_predicted"] - self.seen - len(tokens)
        self.seen = event["tokens_predicted"]
        return [*self.vocabulary.before(tokens[0], event["content"], lost), *tokens] if lost else tokens


def _logprob(entry: Mapping[str, Any]) -> Logprob:
    top = tuple((other["id"], other["logprob"]) for other in entry.get("top_logprobs") or ())
    return Logprob(entry["id"], entry["logprob"], top)


class ByteVocabulary:
    """The bytes of tokens, as far as they are parts of characters."""

    def __init__(self, text: TextCodec) -> None:
        self._text = text

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        letters = _byte_letters()
        by_token = {}
        for token, i in self._text.tokenizer.get_vocab().items():
            if BYTE.fullmatch(token):
                by_token[i] = bytes([int(token[3:5], 16)])
            elif all(letter in letters for letter in token):
                by_token[i] = bytes(letters[letter] for letter in token)
        return by_token

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {data: i for i, data in self._bytes.items() if len(data) <= LONGEST}

    def before(self, token: int, content: str, count: int) -> list[int]:
        """The `count` tokens that came before this one, which ends a character that they began. Where its bytes can be
        cut in several ways, the way its usual encoding takes is preferred."""
        whole, last = content.encode(), self._bytes.get(token, b"")
        start = whole[: len(whole) - len(last)]
        usual = self._text.tokenizer.encode(content, add_special_tokens=False)
        ways = list(self._ways(start, count))
        best = next((way for way in ways if [*way, token] == usual), None) or next(iter(ways), None)
        return best or [token] * count

    def _ways(self, data: bytes, count: int) -> Iterator[list[int]]:
        if count == 0:
            if not data:
                yield []
            return
        for size in range(1, len(data) - count + 2):
            head = self._ids.get(data[:size])
            if head is not None:
                yield from ([head, *rest] for rest in self._ways(data[size:], count - 1))


def _byte_letters() -> dict[str, int]:
    """Byte-level vocabularies write a byte as itself where it is a visible letter, and the others from U+0100 on."""
    visible = [b for b in range(256) if re.fullmatch(r"[!-~\u00a1-\u00ac\u00ae-\u00ff]", chr(b))]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + n): b for n, b in enumerate(hidden)}


def said(reply: bytes) -> str:
    """What an error reply of the server says."""
    try:
        return str(json.loads(reply)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.decode(errors="replace")[:200]
