"""Checks an answer against its problem. Every checker gives right or wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from slipstream.bench.quality.sandbox import SandboxLimits, passes
from slipstream.bench.quality.scores import FENCE, NUMBER, as_number
from slipstream.bench.tasks.problems import Problem
from slipstream.kernels.machine import cores

FINAL = re.compile(r"####\s*\$?\s*(-?[\d.,]+)|\\boxed\{\s*\\?\$?\s*(-?[\d.,]+)")  # marks of a final number
LIMITS = SandboxLimits(seconds=10.0)


def correct(problem: Problem, answer: str) -> bool:
    """Whether an answer solves its problem."""
    return CHECKS[problem.checker](problem, answer)


def grade(pairs: Sequence[tuple[Problem, str]]) -> list[bool]:
    """Whether each answer solves its problem. Programs run on all cores, and equal pairs once."""
    different = list(dict.fromkeys(pairs))
    with ThreadPoolExecutor(max(1, int(cores()))) as pool:
        grades = dict(zip(different, pool.map(lambda pair: correct(*pair), different), strict=True))
    return [grades[pair] for pair in pairs]


def _exact(problem: Problem, answer: str) -> bool:
    """Equal texts, without white space at the ends."""
    return answer.strip() == problem.answer.strip()


def _number(problem: Problem, answer: str) -> bool:
    """Equal final numbers: the marked one (#### or boxed), otherwise the last one."""
    wanted, given = as_number(problem.answer.strip()), final_number(answer)
    return wanted is not None and wanted == given


def final_number(answer: str) -> float | None:
    marked = FINAL.findall(answer)
    numbers = NUMBER.findall(max(marked[-1], key=len) if marked else answer)
    return as_number(numbers[-1]) if numbers else None


def _regex(problem: Problem, answer: str) -> bool:
    """The pattern matches somewhere in the answer."""
    return re.search(problem.answer, answer) is not None


def _python(problem: Problem, answer: str) -> bool:
    return passes(program(problem, answer), LIMITS)


def program(problem: Problem, answer: str) -> str:
    """The code of an answer and the tests of its problem.

    The code is in fenced blocks, or the answer is code. A function that the prompt begins is continued by an answer
    without a fence that does not define it."""
    blocks = FENCE.findall(answer)
    code = "\n".join(blocks) if blocks else answer
    if not problem.entry_point:
        return f"{code}\n\n{problem.test}\n"
    continues = not blocks and not re.search(rf"^def {re.escape(problem.entry_point)}\b", code, re.MULTILINE)
    whole = problem.prompt + code if continues else f"{problem.prompt}\n    pass\n\n{code}"
    return f"{whole}\n\n{problem.test}\ncheck({problem.entry_point})\n"


CHECKS: dict[str, Callable[[Problem, str], bool]] = {
    "exact": _exact,
    "number": _number,
    "regex": _regex,
    "python": _python,
}
