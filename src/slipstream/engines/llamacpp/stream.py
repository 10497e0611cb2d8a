"""Reads the server's event stream: the tokens of each cycle, and how many of them were drafted.

Two things are missing in the stream and are reconstructed. Tokens that end inside a character are only counted; they
are found from the bytes of the character. Tokens are sent one by one; those of one cycle have the same time stamp.
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
    """The tokens of one cycle."""

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
    """Turns events into cycles."""

    vocabulary: ByteVocabulary
    seen: int = 0
    drafted: int = 0
    accepted: int = 0
    stamp: float = -1.0
    due: int = 0  # tokens of this cycle that are still to come
    cycle: StreamCycle = field(default_factory=lambda: StreamCycle([], 0, 0, []))

    def feed(self, event: Mapping[str, Any]) -> Iterator[StreamCycle]:
        """Add an event. Returns the cycles that are complete now."""
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
        complete, self.cycle = self.cycle, StreamCycle([], 0, 0, [])
        if complete.tokens:
            yield complete

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
    """The bytes of tokens, and tokens by their bytes."""

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
        """The `count` tokens before this one, which completes a character that they began.

        If several sequences of tokens have these bytes, the tokenizer's own encoding is preferred."""
        data, last = content.encode(), self._bytes.get(token, b"")
        start = data[: len(data) - len(last)]
        usual = self._text.tokenizer.encode(content, add_special_tokens=False)
        sequences = list(self._sequences(start, count))
        best = next((ids for ids in sequences if [*ids, token] == usual), None) or next(iter(sequences), None)
        return best or [token] * count

    def _sequences(self, data: bytes, count: int) -> Iterator[list[int]]:
        """All sequences of `count` tokens with these bytes."""
        if count == 0:
            if not data:
                yield []
            return
        for size in range(1, len(data) - count + 2):
            head = self._ids.get(data[:size])
            if head is not None:
                yield from ([head, *rest] for rest in self._sequences(data[size:], count - 1))


def _byte_letters() -> dict[str, int]:
    """The byte of each byte-level letter: visible Latin-1 letters are themselves, other bytes start at U+0100."""
    visible = [b for b in range(256) if re.fullmatch(r"[!-~\u00a1-\u00ac\u00ae-\u00ff]", chr(b))]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + n): b for n, b in enumerate(hidden)}


def error_message(reply: bytes) -> str:
    """The message of an error reply."""
    try:
        return str(json.loads(reply)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.decode(errors="replace")[:200]
