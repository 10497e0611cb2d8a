"""The prompt of `generate`: an argument or a file, followed by piped standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path
from typing import Any

PATIENCE = 2.0  # seconds without input after which a message explains the wait


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The argument or the file, then a blank line and standard input if that is a pipe or a file.

    Without argument and file, or if the argument is "-", standard input is read in any case.
    """
    if prompt is not None and file is not None:
        raise ValueError("give the prompt as an argument or with --file, not both")
    parts = []
    if file is not None:
        parts.append(read_text(file))
    elif prompt is not None and prompt != "-":
        parts.append(prompt)
    if not parts or _is_piped(sys.stdin):
        parts.append(_decoded(_stdin_bytes(announce=bool(parts)), "standard input"))
    filled = [part for part in parts if part.strip()]
    if not filled:
        raise ValueError("the prompt is empty; give it as an argument, with --file, or on standard input")
    return "\n\n".join([*(part.rstrip("\n") for part in filled[:-1]), filled[-1]])


def as_conversation(prompt: str, system: str | None) -> str | list[dict[str, str]]:
    """The prompt by itself, or as the user's turn after a system prompt."""
    if system is None:
        return prompt
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt}]


def _is_piped(stream: Any) -> bool:
    """Whether standard input is a pipe or a file, not a terminal or /dev/null.

    A stream without a file descriptor counts as a pipe: a test or a program put it there."""
    if stream is None:  # closed by the shell
        return False
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _stdin_bytes(announce: bool) -> bytes:
    """All of standard input. `announce`: print a message if a pipe has no input for a while."""
    if sys.stdin is None:
        return b""
    if announce and not _readable_soon(sys.stdin):
        print("waiting for standard input, which is a pipe; < /dev/null leaves it out", file=sys.stderr, flush=True)
    data: bytes = sys.stdin.buffer.read()
    return data


def _readable_soon(stream: Any) -> bool:
    try:
        return bool(select.select([stream.fileno()], [], [], PATIENCE)[0])
    except OSError:
        return True


def read_text(file: Path) -> str:
    """The text of a file. ValueError if it cannot be read or is not UTF-8."""
    try:
        return _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text (byte {error.start})") from error
