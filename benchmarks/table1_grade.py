"""Grades the texts of `table1.py`: ROUGE-2 of summaries, pass@1 and pass@10 of code, with paired intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.tasks.grading import grade
from slipstream.bench.tasks.intervals import interval, paired_interval
from slipstream.bench.tasks.problems import TaskSet

WAYS = ("plain", "speculation")


def grade_folder(folder: Path, articles: Sequence[Mapping[str, Any]], task: TaskSet) -> dict[str, Any]:
    """The table of a folder of texts and times."""
    times = json.loads((folder / "times.json").read_text())
    lines = [json.loads(line) for line in (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    references = {entry["id"]: entry["reference"] for entry in articles}
    rows = []
    for name in dict.fromkeys(line["set"] for line in lines):
        ways = {line["way"]: line for line in lines if line["set"] == name}
        if missing := set(WAYS) - ways.keys():
            raise ValueError(f"{folder} lacks the texts of {name}, {', '.join(sorted(missing))}")
        answers = {way: ways[way]["answers"] for way in WAYS}
        scores = summaries(answers, references) if name.startswith("XSum") else programs(answers, task)
        same = [answers["plain"][own] == answers["speculation"][own] for own in answers["plain"]]
        rows += [row(name, metric, values, times["sets"][name], ways, same) for metric, values in scores.items()]
    return {**times["about"], "batch": times["batch"], "depth": times["depth"], "rows": rows}


def row(
    name: str,
    metric: str,
    values: Mapping[str, Sequence[float]],
    timed: Mapping[str, Any],
    ways: Mapping[str, Mapping[str, Any]],
    same: Sequence[bool],
) -> dict[str, Any]:
    """One line of the table. Milliseconds per token are of batch 1, and again of the whole batch."""
    plain, ours = values["plain"], values["speculation"]
    difference = [b - a for a, b in zip(plain, ours, strict=True)]
    low, high = paired_interval(difference) if any(difference) else (0.0, 0.0)
    single = {way: 1000 * timed["seconds"][way] / timed["tokens"][way] for way in WAYS}
    batched = {way: 1000 * ways[way]["seconds"] / ways[way]["tokens"] for way in WAYS}
    return {
        "set": name,
        "metric": metric,
        "items": len(plain),
        "plain": mean(plain),
        "plain_interval": list(interval(plain)),
        "speculation": mean(ours),
        "difference": mean(difference),
        "difference_interval": [low, high],
        "equal_within_interval": low <= 0 <= high,
        "identical_texts": sum(same) / len(same),
        "ms_per_token": single,
        "speed_up": single["plain"] / single["speculation"],
        "ms_per_token_in_batch": batched,
        "speed_up_in_batch": batched["plain"] / batched["speculation"],
        "tau": timed["tau"],
    }


def summaries(
    answers: Mapping[str, Mapping[str, Sequence[str]]], references: Mapping[str, str]
) -> dict[str, dict[str, list[float]]]:
    """ROUGE-2 (F measure) of each article's summary."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise SystemExit("ROUGE-2 needs the package rouge-score: pip install 'slipstream-lm[rouge]'") from None
    scorer = RougeScorer(["rouge2"], use_stemmer=True)
    return {
        "ROUGE-2": {
            way: [scorer.score(references[own], texts[0])["rouge2"].fmeasure for own, texts in given.items()]
            for way, given in answers.items()
        }
    }


def programs(answers: Mapping[str, Mapping[str, Sequence[str]]], task: TaskSet) -> dict[str, dict[str, list[float]]]:
    """pass@1 of each problem, and pass@k of as many samples as there are."""
    problems = {problem.id: problem for problem in task.problems}
    pairs = [(problems[own], text) for given in answers.values() for own, texts in given.items() for text in texts]
    grades = iter(grade(pairs))
    right = {way: [[next(grades) for _ in texts] for texts in given.values()] for way, given in answers.items()}
    samples = len(next(iter(right["plain"])))
    return {
        f"pass@{k}": {way: [pass_at(k, len(own), sum(own)) for own in right[way]] for way in right}
        for k in sorted({1, samples})
    }


def pass_at(k: int, samples: int, right: int) -> float:
    """The probability that one of k samples is right, estimated from more of them (arXiv 2107.03374)."""
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def shown(table: Mapping[str, Any]) -> str:
    titles = ["set", "metric", "plain", "speculation", "difference (95 %)", "ms per token", "speed-up"]
    lines = [f"| {' | '.join(titles)} |", "|---|---|" + "--:|" * 5]
    for entry in table["rows"]:
        low, high = entry["difference_interval"]
        single = entry["ms_per_token"]
        lines.append(
            f"| {entry['set']} | {entry['metric']} | {entry['plain']:.3f} | {entry['speculation']:.3f} | "
            f"{entry['difference']:+.3f} ({low:+.3f} to {high:+.3f}) | {single['plain']:.2f} → "
            f"{single['speculation']:.2f} | {entry['speed_up']:.2f} |"
        )
    return "\n".join(lines)
