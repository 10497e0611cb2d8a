"""Prints streamed text: coloured and word-wrapped on a terminal, unchanged elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from slipstream.cli.output.word_wrap import WordWrap

if TYPE_CHECKING:
    from slipstream.engines.base import Chunk

COLOURS = {"accepted": "green", "recovered": "yellow", "bonus": "cyan", "plain": ""}
MEANINGS = {
    "accepted": "drafts",
    "recovered": "after a rejected draft",
    "bonus": "after a draft accepted whole",
    "plain": "without a draft",
}


class TokenView:
    """Prints one text, chunk by chunk. rich is used for terminals only: it replaces tabs and control codes."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._wrap = WordWrap(out.width) if out.is_terminal else None

    def show(self, chunk: Chunk) -> None:
        if self._wrap is None:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            return
        for piece, origin in zip(chunk.pieces, chunk.origins, strict=True):
            self._out.print(self._wrap.feed(piece, COLOURS[origin]), end="")
        self._out.print(self._wrap.feed(chunk.text[len("".join(chunk.pieces)) :]), end="")

    def end(self) -> None:
        """Print the last word and a newline."""
        if self._wrap is not None:
            self._out.print(self._wrap.flush(), end="")
        self._out.print()


def legend() -> Text:
    """The meaning of the colours."""
    entries = (Text.assemble((name, COLOURS[name]), (f" {meaning}", "dim")) for name, meaning in MEANINGS.items())
    return Text.assemble(("colours: ", "dim"), Text(", ").join(entries))
