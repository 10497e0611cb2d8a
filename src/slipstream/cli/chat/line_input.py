"""Lines that a user types in `chat`."""

from __future__ import annotations

import sys
from contextlib import suppress

PROMPT = "> "


def read_line() -> str | None:
    """The next line without leading and trailing spaces; None at the end of the input.

    ValueError if the line is not UTF-8. The next line can then be read."""
    try:
        line = _typed() if sys.stdin.isatty() else _piped()
        if line is not None:
            line.encode()  # a terminal with another locale gives lone surrogates
    except UnicodeError as error:
        raise ValueError("this line is not UTF-8 text, so it was not sent") from error
    return None if line is None else line.strip()


def _typed() -> str | None:
    """A line from a terminal, with history and editing if the platform supports them."""
    if not sys.stdout.isatty():
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return _piped()
    with suppress(ImportError):
        import readline  # noqa: F401 (importing it is what makes `input` use it)
    try:
        return input(PROMPT)
    except EOFError:
        print()
        return None


def _piped() -> str | None:
    data: bytes = sys.stdin.buffer.readline()
    return data.decode() if data else None
