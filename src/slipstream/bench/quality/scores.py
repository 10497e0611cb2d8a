"""How good answers are where a reference exists, so that equal quality is shown and not assumed.

tests      Python tests pass on the code of the answer (in a limited process, `sandbox.py`)
exact      the last number of the answer is the reference
contains   the reference stands in the answer
rouge      ROUGE-L: the longest common subsequence of words, as an F measure
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.bench.quality.sandbox import passes
from slipstream.bench.workloads import Item

NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
FENCE = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Quality:
    """The mean score of the answers that could be scored, by metric."""

    scores: dict[str, float]
    counts: dict[str, int]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items())


def judge(items: Sequence[Item], answers: Sequence[str]) -> Quality:
    """Scores between 0 and 1, meaned by metric; empty where no item has a reference."""
    scores: dict[str, list[float]] = {}
    for item, answer in zip(items, answers, strict=True):
        if item.metric is not None:
            scores.setdefault(item.metric, []).append(SCORES[item.metric](item, answer))
    means = {name: sum(values) / len(values) for name, values in sorted(scores.items())}
    return Quality(means, {name: len(scores[name]) for name in means})


def tested(item: Item, answer: str) -> float:
    return float(passes(f"{program(item, answer)}\n{item.tests}\n"))


def program(item: Item, answer: str) -> str:
    """The code of an answer: what continues the prompt, the fenced blocks, or all of it."""
    if item.raw:
        return item.turns[-1] + answer
    blocks = FENCE.findall(answer)
    return "\n".join(blocks) if blocks else answer


def exact(item: Item, answer: str) -> float:
    numbers = NUMBER.findall(answer)
    return float(bool(numbers) and _number(numbers[-1]) == _number(item.reference or ""))


def _number(text: str) -> float | None:
    """A number however it is written: 1,250 and 1250.0 are the same."""
    plain = re.sub(r",(?=\d{3}\b)", "", text).replace(",", ".")
    try:
        return float(plain)
    except ValueError:
        return None


def contains(item: Item, answer: str) -> float:
    return float((item.reference or "").casefold() in answer.casefold())


def rouge(item: Item, answer: str) -> float:
    return rouge_l(item.reference or "", answer)


def rouge_l(reference: str, answer: str) -> float:
    """F1 of the longest common subsequence of words, case and punctuation aside."""
    ours, theirs = _words(answer), _words(reference)
    common = _common(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, one row of the table at a time."""
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if word == other else max(row[j], row[j - 1])
    return row[-1]


SCORES: dict[str, Callable[[Item, str], float]] = {
    "tests": tested,
    "exact": exact,
    "contains": contains,
    "rouge": rouge,
}
