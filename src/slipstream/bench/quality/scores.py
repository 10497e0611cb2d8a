"""Scores of answers that have a reference, to verify that speculation does not change quality.

tests      Python tests pass on the code of the answer (in a sandbox, `sandbox.py`)
exact      the last number of the answer equals the reference
contains   the answer contains the reference
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
    """Mean scores between 0 and 1 by metric; empty if no item has a reference."""
    scores: dict[str, list[float]] = {}
    for item, answer in zip(items, answers, strict=True):
        if item.metric is not None:
            scores.setdefault(item.metric, []).append(SCORES[item.metric](item, answer))
    means = {name: sum(values) / len(values) for name, values in sorted(scores.items())}
    return Quality(means, {name: len(scores[name]) for name in means})


def tested(item: Item, answer: str) -> float:
    return float(passes(f"{program(item, answer)}\n{item.tests}\n"))


def program(item: Item, answer: str) -> str:
    """The code of an answer: prompt and answer for raw prompts, otherwise the fenced blocks or the whole answer."""
    if item.raw:
        return item.turns[-1] + answer
    blocks = FENCE.findall(answer)
    return "\n".join(blocks) if blocks else answer


def exact(item: Item, answer: str) -> float:
    numbers = NUMBER.findall(answer)
    return float(bool(numbers) and as_number(numbers[-1]) == as_number(item.reference or ""))


def as_number(text: str) -> float | None:
    """The value of a number in any notation: 1,250 and 1250.0 are equal."""
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
    """F1 of the longest common subsequence of words, without case and punctuation."""
    answer_words, reference_words = _words(answer), _words(reference)
    common = _common(answer_words, reference_words)
    return 2 * common / (len(answer_words) + len(reference_words)) if common else 0.0


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
