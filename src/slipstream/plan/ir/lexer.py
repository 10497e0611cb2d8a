"""Splits the text form of a plan into lines of tokens with their columns."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from slipstream.plan.ir.nodes import PlanError, Position

WORD = r"[A-Za-z_][\w.:/+-]*"
_TOKEN = re.compile(
    rf"""(?P<space>[ \t]+)
    |(?P<comment>\#.*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<range>\d+\.\.\d+)
    |(?P<shape>\d+(?:x\d+)+)
    |(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<result>%[A-Za-z_]\w*)
    |(?P<word>{WORD})
    |(?P<mark>[=(),])""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Lexeme:
    """A piece of a line. `kind` is string, range, shape, number, result, word, mark or end."""

    kind: str
    text: str
    position: Position

    @property
    def shown(self) -> str:
        return "the end of the line" if self.kind == "end" else repr(self.text)

    @property
    def string(self) -> str:
        """The content of a quoted string."""
        value: str = json.loads(self.text)
        return value


@dataclass(frozen=True)
class PlanLine:
    """The tokens of a line, ended by an `end` token, and its comment without the `#`."""

    tokens: tuple[Lexeme, ...]
    comment: str | None

    @property
    def empty(self) -> bool:
        return len(self.tokens) == 1


def lines(text: str, source: str = "plan") -> list[PlanLine]:
    """The lines of a text. PlanError at a character that begins no token."""
    return [_line(number, words, source) for number, words in enumerate(text.splitlines(), 1)]


def _line(number: int, text: str, source: str) -> PlanLine:
    tokens, comment, at = list[Lexeme](), None, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        position = Position(number, at + 1)
        if match is None:
            reason = "the string is not closed" if text[at] == '"' else f"{text[at]!r} begins no word"
            raise PlanError(f'{reason}; write words, numbers, "strings", %results and = ( ) ,', position, source)
        kind = str(match.lastgroup)
        if kind == "comment":
            comment = match.group()[1:].strip()
        elif kind != "space":
            tokens.append(Lexeme(kind, match.group(), position))
            _check_string(tokens[-1], source)
        at = match.end()
    tokens.append(Lexeme("end", "", Position(number, len(text.rstrip()) + 1)))
    return PlanLine(tuple(tokens), comment)


def _check_string(token: Lexeme, source: str) -> None:
    if token.kind == "string":
        try:
            _ = token.string
        except ValueError as error:
            raise PlanError(
                f"the string {token.text} holds an escape that JSON does not have", token.position, source
            ) from error
