"""The problems of a task, read from a .jsonl file with one problem per line.

{"prompt": "…", "checker": "exact" | "number" | "regex" | "python", "answer": "…" or "test": "…", "id": "…"}

- exact, number and regex compare the text with `answer`. For regex it is a pattern. `reference` means the same.
- python runs the code of the text and then `test`. With `entry_point` the prompt is a function to complete, as in
  HumanEval, and `test` defines `check(function)`.
- The files of HumanEval (`task_id`), MBPP (`test_list`) and GSM8K (`question`) as they are published are read too.

humaneval, mbpp and gsm8k stand for files of that name in a local folder: slipstream brings no problems.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.workloads.formats import FUNCTION_ENDS

CHECKERS = ("exact", "number", "regex", "python")
NAMES = ("humaneval", "mbpp", "gsm8k")
COMPLETE = "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}\n```"
PUBLISHED_MBPP = "{} Your code should pass these tests:\n\n{}\n"


@dataclass(frozen=True)
class Problem:
    """A prompt, and how an answer is checked."""

    id: str
    prompt: str
    checker: str
    answer: str = ""  # exact, number, regex
    test: str = ""  # python
    entry_point: str = ""  # python: the function that the prompt begins

    def text(self, instruct: bool) -> tuple[str, bool, tuple[str, ...]]:
        """What a model is given: the prompt, whether it is continued without a chat template, and stop strings."""
        if not self.entry_point:
            return self.prompt, False, ()
        return (COMPLETE.format(self.prompt), False, ()) if instruct else (self.prompt, True, FUNCTION_ENDS)


@dataclass(frozen=True)
class TaskSet:
    """The problems of one file, or the first ones of it."""

    name: str
    problems: tuple[Problem, ...]

    @property
    def metric(self) -> str:
        """pass@1 for problems that are all checked by code, otherwise accuracy."""
        return "pass@1" if all(problem.checker == "python" for problem in self.problems) else "accuracy"


def load_task(spec: str) -> TaskSet:
    """The problems of `humaneval`, `FILE.jsonl`, `FILE.jsonl:20` for the first 20, or several with commas between."""
    if "," in spec and not Path(spec).expanduser().is_file():
        return join_tasks([word.strip() for word in spec.split(",")])
    name, colon, count = spec.rpartition(":")
    if not (colon and count.isdigit()):
        name, count = spec, ""
    problems = _read(_path(name))
    if count and not 1 <= int(count) <= len(problems):
        raise ValueError(f"the task {name} holds {len(problems)} problems; {spec} asks for {count}")
    return TaskSet(Path(name).stem, tuple(problems[: int(count)] if count else problems))


def join_tasks(specs: Sequence[str]) -> TaskSet:
    """The problems of several tasks as one."""
    tasks = [load_task(spec) for spec in specs]
    return TaskSet("+".join(task.name for task in tasks), tuple(p for task in tasks for p in task.problems))


def task_folder() -> Path:
    """Where named tasks are kept: $SLIPSTREAM_TASKS, else the folder `tasks` beside the models."""
    from slipstream.models.sources.store import home

    own = os.environ.get("SLIPSTREAM_TASKS")
    return Path(own).expanduser() if own else home().parent / "tasks"


def _path(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name in NAMES:
        path = task_folder() / f"{name}.jsonl"
        if path.is_file():
            return path
        raise ValueError(
            f"slipstream brings no problems: put {name}.jsonl into {path.parent} (or the folder $SLIPSTREAM_TASKS), "
            "or give the path of the file"
        )
    raise ValueError(f"there is no task {name!r}; it must be {', '.join(NAMES)} or a .jsonl file")


def _read(path: Path) -> list[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error
    problems = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                problems.append(problem_of(json.loads(line), f"{path.stem}/{number}"))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error.msg}") from error
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is no problem: {error}") from error
    if not problems:
        raise ValueError(f"the task {path} holds no problem; write one JSON object per line")
    return problems


def problem_of(data: Any, name: str) -> Problem:
    """One problem. ValueError if it lacks its prompt, its checker, or what the checker needs."""
    if not isinstance(data, dict):
        raise ValueError("it must be one JSON object")
    data = _published(data)
    prompt, checker = data.get("prompt"), data.get("checker")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("it has no prompt")
    if checker not in CHECKERS:
        said = "it has no checker" if checker is None else f"its checker is {checker!r}"
        raise ValueError(f"{said}; it must be one of {', '.join(CHECKERS)}")
    own = str(data.get("id", name))
    if checker == "python":
        test, entry_point = _text(data, "test"), str(data.get("entry_point") or "")
        return Problem(own, prompt, checker, test=test, entry_point=entry_point)
    answer = _text(data, "answer")
    if checker == "regex":
        try:
            re.compile(answer)
        except re.error as error:
            raise ValueError(f"its answer {answer!r} is no regular expression: {error}") from error
    return Problem(own, prompt, checker, answer)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"its checker {data['checker']} needs the field {name}, as text")
    return value


def _published(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a problem. Those of published files and of other spellings are translated."""
    if "checker" not in data and {"test", "entry_point"} <= data.keys():
        data = {"checker": "python", "id": data.get("task_id"), **data}
    elif "checker" not in data and isinstance(data.get("test_list"), list):
        tests = "\n".join(map(str, data["test_list"]))
        prompt = PUBLISHED_MBPP.format(data.get("text") or data.get("prompt") or "", tests)
        data = {"checker": "python", "id": f"mbpp/{data.get('task_id')}", **data, "prompt": prompt, "test": tests}
    elif "checker" not in data and isinstance(data.get("question"), str) and "####" in str(data.get("answer")):
        answer = str(data["answer"]).rpartition("####")[2].strip()
        data = {"checker": "number", **data, "prompt": data["question"], "answer": answer}
    names = {"reference": "answer", "tests": "test"}
    return data | {new: data[old] for old, new in names.items() if old in data and new not in data}
