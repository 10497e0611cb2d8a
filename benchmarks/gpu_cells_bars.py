"""The cells of `gpu_cells.py`, their bars and their table: no engine, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.statistics import Estimate, ratio
from slipstream.core.sampling import Sampling

PLAIN_BAR = 0.98  # of plain decoding, in every cell
DEPTH_BAR = 0.95  # of the best fixed depth, in the stated cells
STALL = 0.5  # of the median of the repeats
HEAD_BATCH = 32  # up to this batch the policy is above plain decoding wherever a fixed depth is
BATCHES = (1, 8, 32, 64, 256)
DEPTHS = (1, 2, 3, 5)
WORKLOADS = ("mix", "code", "chat", "maths", "summary", "rewriting")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    temperature: float
    seeded: bool

    def sampling(self, seed: int) -> Sampling:
        return Sampling(temperature=self.temperature, seed=seed if self.seeded else None)


RULES = {"greedy": Rule(0.0, False), "block": Rule(0.8, False), "coupled": Rule(0.8, True)}


@dataclass(frozen=True)
class Cell:
    batch: int
    rule: str
    workload: str

    @property
    def name(self) -> str:
        return f"{self.batch} {self.rule} {self.workload}"

    @property
    def stated(self) -> bool:
        """Whether fixed depths are measured as well."""
        return self.name in STATED


STATED = (
    *("1 greedy code", "1 block chat", "1 coupled maths"),
    *("8 greedy rewriting", "8 block mix", "8 coupled summary"),
    *("32 greedy maths", "32 block code", "32 coupled mix"),
    *("64 greedy mix", "64 block summary", "256 coupled chat"),
)


def cells(batches: Sequence[int], rules: Sequence[str], workloads: Sequence[str]) -> list[Cell]:
    """All batches and rules of one workload before the next one, so that a cut run holds whole workloads."""
    return [Cell(batch, rule, workload) for workload in workloads for rule in rules for batch in batches]


def of_medians(record: Record, way: str, base: str) -> Estimate:
    """The ratio of the medians of two ways, with the interval of the mean ratio of a repeat."""
    speeds, others = record["speeds"][way], record["speeds"][base]
    return Estimate(statistics.median(speeds) / statistics.median(others), ratio(speeds, others).interval)


def against_plain(record: Record) -> Estimate:
    return of_medians(record, "policy", "plain")


def best_depth(record: Record) -> str | None:
    """The fastest fixed depth; None where none was measured."""
    speeds = {name: statistics.median(each) for name, each in record["speeds"].items() if name.startswith("depth")}
    return max(speeds, key=speeds.__getitem__) if speeds else None


def stalls(record: Record) -> dict[str, int]:
    """The ways with repeats under half of their median, and how many."""
    counts = {
        name: sum(speed < STALL * statistics.median(each) for speed in each) for name, each in record["speeds"].items()
    }
    return {name: count for name, count in counts.items() if count}


def misses(cell: Cell, record: Record) -> list[str]:
    """One line for each bar that a cell misses."""
    speeds, plain, lines = record["speeds"], against_plain(record), []
    if plain.value < PLAIN_BAR:
        lines.append(f"policy {plain.value:.3f} of plain decoding; the bar is {PLAIN_BAR}")
    if best := best_depth(record):
        of_best = of_medians(record, "policy", best).value
        if of_best < DEPTH_BAR:
            lines.append(f"policy {of_best:.3f} of {best}; the bar is {DEPTH_BAR}")
        gain = of_medians(record, best, "plain")
        if cell.batch <= HEAD_BATCH and gain.interval and gain.interval[0] > 1 >= plain.value:
            lines.append(f"policy {plain.value:.3f} of plain decoding, {best} {gain.value:.3f}")
    lines += [f"{count} of {len(speeds[name])} runs stalled: {name}" for name, count in stalls(record).items()]
    return [f"missed, {cell.name}: {line}" for line in lines]


def shown_ratio(record: Record) -> tuple[str, str]:
    """The ratio of the policy to plain decoding, and its interval."""
    own = against_plain(record)
    return f"{own.value:.3f}", f"[{own.interval[0]:.3f}, {own.interval[1]:.3f}]" if own.interval else ""


def table(records: Mapping[Cell, Record]) -> str:
    """Medians in tokens per second, their ratios, and 95 % intervals of the mean ratio, in Markdown."""
    lines = [
        "| batch | rule | workload | plain | policy | tau | policy / plain | best depth | policy / best | stalls |",
        "|--:|---|---|--:|--:|--:|---|--:|--:|--:|",
    ]
    for cell, record in records.items():
        speeds, best = record["speeds"], best_depth(record)
        plain, policy = (f"{statistics.median(speeds[name]):,.0f}" for name in ("plain", "policy"))
        fixed = f"{best[6:]} | {of_medians(record, 'policy', best).value:.3f}" if best else " | "
        lines.append(
            f"| {cell.batch} | {cell.rule} | {cell.workload} | {plain} | {policy} | {record['tau']['policy']} "
            f"| {' '.join(shown_ratio(record))} | {fixed} | {sum(stalls(record).values()) or ''} |"
        )
    return "\n".join(lines)
