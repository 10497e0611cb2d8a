"""Word wrap for streamed text. Lines are broken between words, and not inside code blocks."""

from __future__ import annotations

import re

from rich.text import Text

FENCE = "```"  # begins and ends a code block, at the start of a line
# scripts without spaces, whose characters are two cells wide: a line may be broken beside any of them
WIDE = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\U00020000-\U0003fffd"
PARTS = re.compile(rf"\n|[^\S\n]+|[{WIDE}]|[^\s{WIDE}]+")
WIDE_CHARACTER = re.compile(f"[{WIDE}]")
TAB = " " * 4


class WordWrap:
    """Holds a word back until it is complete. `flush` returns the last word."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._column = 0
        self._line = ""  # the text of the current line as the model wrote it
        self._code = False
        self._inside = False  # whether the last part was cut inside a word
        self._space, self._word = Text(), Text()

    def feed(self, text: str, style: str = "") -> Text:
        """Add text. Returns the text that can be printed now."""
        ready = Text()
        for part in PARTS.findall(text.replace("\t", TAB)):
            if part == "\n":
                ready.append_text(self._end_line())
            elif part.isspace():
                ready.append_text(self._end_word())
                self._space.append(part, style)
            else:
                wide = WIDE_CHARACTER.match(part) is not None
                if wide:
                    ready.append_text(self._end_word())
                self._word.append(part, style)
                if wide or self._code:
                    ready.append_text(self._end_word())
                elif self._word.cell_len >= self.width:  # too long for any line: the terminal breaks it
                    ready.append_text(self._end_word())
                    self._inside = True
            self._line = "" if part == "\n" else self._line + part
        return ready

    def flush(self) -> Text:
        """The remaining text."""
        return self._end_word()

    def _end_word(self) -> Text:
        """The held word after its space, or on a new line if it does not fit."""
        if not self._word:
            return Text()
        space, word = self._space, self._word
        size, fixed = space.cell_len + word.cell_len, self._code or (self._inside and not space)
        self._space, self._word, self._inside = Text(), Text(), False
        if self._column and not fixed and self._column + size > self.width:
            self._column = word.cell_len
            return Text("\n") + word
        self._column += size
        if self._column > self.width:  # broken by the terminal
            self._column = (self._column - 1) % self.width + 1
        return space + word

    def _end_line(self) -> Text:
        ready = self._end_word() + self._space + Text("\n")
        self._space, self._column = Text(), 0
        if self._line.lstrip().startswith(FENCE):
            self._code = not self._code
        return ready
