"""Prompts to train on: JSONL files, plain or gzipped, one object a line with `prompt` or `messages`."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.models.text.codec import TextCodec


@dataclass(frozen=True)
class Prompt:
    """Token ids of one prompt, and the task it says it is of."""

    tokens: tuple[int, ...]
    task: str


def read_prompts(paths: Sequence[Path], text: TextCodec, longest: int) -> list[Prompt]:
    """All prompts of the files through the target's chat template, each once; those longer than `longest` are left
    out."""
    found: dict[tuple[int, ...], Prompt] = {}
    for path in paths:
        for number, line in _lines(path):
            tokens = tuple(text.encode(_asked(line, path, number)))
            if len(tokens) <= longest:
                found.setdefault(tokens, Prompt(tokens, str(line.get("task", path.stem)).split("/")[0]))
    if not found:
        names = ", ".join(map(str, paths))
        raise ValueError(f"{names} holds no prompt of at most {longest} tokens; longer ones are not trained on")
    return list(found.values())


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        value = json.loads(line)
                    except json.JSONDecodeError as error:
                        raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from error
                    if not isinstance(value, dict):
                        raise ValueError(f"{path}, line {number}: a line is an object with `prompt` or `messages`")
                    yield number, value
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"cannot read {path}: {reason}") from error


def _asked(line: dict[str, Any], path: Path, number: int) -> Any:
    for key, kind in (("prompt", str), ("messages", list)):
        if isinstance(line.get(key), kind) and line[key]:
            return line[key]
    raise ValueError(f"{path}, line {number}: neither a text under `prompt` nor a chat under `messages`")


def split(prompts: Sequence[Prompt], share: float, most: int = 512) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to train on and prompts held out, by a hash of each: the same whatever else stands in the files."""
    held = [prompt for prompt in prompts if _fraction(prompt) < share]
    held = sorted(held, key=_fraction)[:most]
    kept = set(held)
    return [prompt for prompt in prompts if prompt not in kept], held


def _fraction(prompt: Prompt) -> float:
    digest = hashlib.sha256(repr(prompt.tokens).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
