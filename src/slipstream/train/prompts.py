"""Prompts to train on: JSONL files, plain or gzipped, one object a line with `prompt` or `messages`."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.models.text.codec import TextCodec


@dataclass(frozen=True)
class TrainingPrompt:
    """Token ids of one prompt, the task that its line names, and the answer in the data where it is used."""

    tokens: tuple[int, ...]
    task: str
    answer: tuple[int, ...] = ()


def read_prompts(paths: Sequence[Path], text: TextCodec, longest: int, longest_answer: int = 0) -> list[TrainingPrompt]:
    """Read the files through the target's chat template. Duplicates and prompts over `longest` tokens are left out.

    `longest_answer`: above 0, every line must have an answer, which is cut to so many tokens."""
    prompts: dict[tuple[int, ...], TrainingPrompt] = {}
    for path in paths:
        for number, line in read_lines(path):
            content, answer = _content(line, path, number), tuple[int, ...]()
            if longest_answer:
                content, written = _with_answer(content, line, path, number)
                answer = _answer_tokens(written, text)[:longest_answer]
            tokens = tuple(text.encode(content))
            if len(tokens) <= longest:
                task = str(line.get("task", path.stem)).split("/")[0]
                prompts.setdefault(tokens, TrainingPrompt(tokens, task, answer))
    names = ", ".join(map(str, paths))
    if not prompts:
        raise ValueError(f"{names} holds no prompt of at most {longest} tokens; longer ones are not trained on")
    if len(prompts) == 1:
        raise ValueError(f"{names} holds one prompt of at most {longest} tokens; training needs two, one is held out")
    return list(prompts.values())


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _content(line: dict[str, Any], path: Path, number: int) -> Any:
    """The text or the chat of one line."""
    for key, kind in (("prompt", str), ("messages", list)):
        if isinstance(line.get(key), kind) and line[key]:
            return line[key]
    raise ValueError(f"{path}, line {number}: neither a text under `prompt` nor a chat under `messages`")


def _with_answer(content: Any, line: dict[str, Any], path: Path, number: int) -> tuple[Any, str]:
    """The prompt and the answer of one line: a text under `response`, or the last message of a chat."""
    if isinstance(response := line.get("response"), str) and response:
        return content, response
    last = content[-1] if isinstance(content, list) and len(content) > 1 else {}
    if isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str):
        return content[:-1], last["content"]
    raise ValueError(
        f"{path}, line {number}: joint training needs an answer, a text under `response` or a chat that ends with "
        "a message of the assistant"
    )


def _answer_tokens(answer: str, text: TextCodec) -> tuple[int, ...]:
    """The tokens of an answer and the token that ends it."""
    own = text.tokenizer.eos_token_id
    ends = [own] if own in text.ends else sorted(text.ends)[:1]
    return (*text.encode_output(answer, "answer", sys.maxsize), *ends)


def split(
    prompts: Sequence[TrainingPrompt], share: float, most: int = 512
) -> tuple[list[TrainingPrompt], list[TrainingPrompt]]:
    """Split into prompts to train on and held-out prompts, at least one of each.

    The hash of a prompt decides, so a prompt stays on its side when others are added. Where no hash falls below
    `share`, the prompt with the smallest one is held out.
    """
    assert len(prompts) >= 2, "read_prompts refuses fewer"
    ranked = sorted(prompts, key=_fraction)
    count = sum(_fraction(prompt) < share for prompt in ranked)
    held = ranked[: max(1, min(count, most, len(ranked) - 1))]
    kept = set(held)
    return [prompt for prompt in prompts if prompt not in kept], held


def fingerprint(prompts: Sequence[TrainingPrompt]) -> str:
    """A hash of all prompts in their order; answers on disk belong to these prompts alone."""
    return hashlib.sha256(repr([prompt.tokens + prompt.answer for prompt in prompts]).encode()).hexdigest()


def _fraction(prompt: TrainingPrompt) -> float:
    """A number in [0, 1) from the hash of the prompt."""
    digest = hashlib.sha256(repr(prompt.tokens).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
