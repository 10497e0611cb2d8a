"""Files of prompts, recognised by their fields: our own JSONL, HumanEval, Spec-Bench and MT-bench.

{"prompt": "…" or messages, "reference": …, "task": …, "tests": …, "metric": …}     our own; only the prompt is needed
{"task_id", "prompt", "test", "entry_point"}                                  HumanEval: continued without a template
{"question_id", "category", "turns": […], "reference": …}                       Spec-Bench and MT-bench: all turns
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS = ("tests", "exact", "contains", "rouge")
OWN = ("prompt", "reference", "task", "tests", "metric")
FUNCTION_ENDS = (
    "\ndef ",
    "\nclass ",
    "\nif __name__",
    "\nprint(",
    "\n#",
    "\nassert ",
)  # stop texts: a complete function is followed by one of these


@dataclass(frozen=True)
class Item:
    """One prompt, or the user's turns of a conversation, and the reference answer if there is one."""

    turns: tuple[str, ...]
    task: str
    system: str = ""
    reference: str | None = None
    metric: str | None = None  # how answers are scored; None if there is no reference
    tests: str | None = None  # Python code that fails if the answer is wrong
    raw: bool = False  # without the chat template
    stop: tuple[str, ...] = ()


def name_of(path: Path) -> str:
    """The name of the workload in a file; a `.jsonl` file may be compressed."""
    return Path(path.stem).stem if path.suffix == ".gz" else path.stem


def read_items(path: Path) -> list[Item]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            lines = file.read().decode().split("\n")
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the workload {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error
    items = [_item(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise ValueError(f"the workload {path} holds no prompt; write one JSON object per line")
    return items


def _item(line: str, path: Path, number: int) -> Item:
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError("it must be one JSON object")
        return _read(data, name_of(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number} is not JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:
        raise ValueError(f"{path}, line {number} is no prompt: {error}") from error


def _read(data: Mapping[str, Any], task: str) -> Item:
    if "turns" in data:
        return _questions(data, task)
    if {"entry_point", "test"} <= data.keys():
        return _human_eval(data)
    if "prompt" in data:
        return _own(data, task)
    raise ValueError("it has neither prompt nor turns")


def _own(data: Mapping[str, Any], task: str) -> Item:
    if unknown := sorted(data.keys() - set(OWN)):
        raise ValueError(f"it has the unknown field {unknown[0]!r}; it takes {', '.join(OWN)}")
    reference, tests = _text(data, "reference"), _text(data, "tests")
    metric = data.get("metric") or _metric(reference, tests)
    if metric not in (None, *METRICS):
        raise ValueError(f"its metric is {metric!r}; it must be one of {', '.join(METRICS)}")
    if metric and (tests if metric == "tests" else reference) is None:
        raise ValueError(f"its metric {metric} needs {'tests' if metric == 'tests' else 'a reference'}")
    system, turns = _turns(data["prompt"])
    return Item(turns, _text(data, "task") or task, system, reference, metric, tests)


def _metric(reference: str | None, tests: str | None) -> str | None:
    """The default metric: tests are run, a number must be equal, any other text is scored with ROUGE."""
    if tests is not None:
        return "tests"
    if reference is None:
        return None
    return "exact" if reference.replace(".", "", 1).lstrip("-").isdigit() else "rouge"


def _turns(prompt: Any) -> tuple[str, tuple[str, ...]]:
    """A prompt's system message and the user's turns. The model itself gives the answers in between."""
    if isinstance(prompt, str):
        turns, system = [prompt], ""
    elif isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt):
        turns = [str(message.get("content", "")) for message in prompt if message.get("role") == "user"]
        system = "\n".join(str(message.get("content", "")) for message in prompt if message.get("role") == "system")
    else:
        raise ValueError("its prompt is neither text nor a list of messages")
    if not turns or not all(turn.strip() for turn in turns):
        raise ValueError("its prompt is empty")
    return system, tuple(turns)


def _human_eval(data: Mapping[str, Any]) -> Item:
    prompt, test, entry = (_needed(data, field) for field in ("prompt", "test", "entry_point"))
    tests = f"{test}\ncheck({entry})\n"
    return Item((prompt,), "humaneval", metric="tests", tests=tests, raw=True, stop=FUNCTION_ENDS)


def _questions(data: Mapping[str, Any], task: str) -> Item:
    """A question of Spec-Bench or MT-bench. A reference is used only if it is one text: those of MT-bench need a judge
    model."""
    turns = data["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ValueError("its turns are no list of texts")
    reference = data.get("reference")
    if isinstance(reference, list):
        reference = reference[0] if len(reference) == len(turns) == 1 else None
    reference = reference if isinstance(reference, str) else None
    return Item(tuple(turns), str(data.get("category", task)), "", reference, _metric(reference, None))


def _text(data: Mapping[str, Any], field: str) -> str | None:
    value = data.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"its field {field} is {value!r}; it must be text")
    return value


def _needed(data: Mapping[str, Any], field: str) -> str:
    value = _text(data, field)
    if not value:
        raise ValueError(f"it has no {field}")
    return value
