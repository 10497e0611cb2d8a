"""Effect, interval and cost of every experiment, from the files of its runs.

Effects are differences to the first variant, seed by seed, because runs of one seed share first weights and batches.
Intervals are 95 % by Student's distribution over the seeds.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from slipstream.bench.statistics import student_quantile

FIGURES = {  # by experiment: those of the last point of a curve that are compared
    1: ("tau_greedy", "tau_sampled", "draft_loss_1", "draft_loss_mean"),
    2: ("text_loss", "tau_greedy", "tau_sampled"),
    3: ("text_loss", "tau_greedy", "tau_sampled", "tau_greedy_off", "tau_sampled_off"),
    4: ("text_loss",),
}
COSTS = ("train_seconds", "step_seconds", "parameters", "head_parameters", "weights_read")
SPEEDS = (
    "tau",
    "tau_sampled",
    "cycle_seconds",
    "plain_cycle_seconds",
    "tokens_per_second",
    "tokens_per_second_sampled",
    "plain_tokens_per_second",
)
BASE = {1: "early_exit", 2: "none", 3: "plain"}  # variants that others are compared with; 4: the first draft model


def read_runs(out: Path) -> list[dict[str, Any]]:
    """All runs of a folder with their last figures beside the other values."""
    runs = [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*.json"))]
    return [run | final_figures(run) for run in runs]


def final_figures(run: dict[str, Any]) -> dict[str, float]:
    last = run["curve"][-1]
    figures = {name: value for name, value in last.items() if not isinstance(value, list)}
    if losses := last.get("draft_loss"):
        figures |= {"draft_loss_1": losses[0], "draft_loss_mean": statistics.mean(losses)}
    figures["train_seconds"] = figures.pop("seconds")
    speed = run.get("speed", {})
    return figures | {f"speed_{name}": speed[name] for name in SPEEDS if name in speed}


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By experiment and variant: mean and interval of every figure, and of its difference to the base variant."""
    by_experiment: dict[int, dict[str, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        by_experiment[run["experiment"]][run["variant"]][run["seed"]] = run
    summary: dict[str, Any] = {}
    for experiment, by_variant in sorted(by_experiment.items()):
        names = (*FIGURES[experiment], *COSTS, *(f"speed_{name}" for name in SPEEDS))
        drafts = sorted(variant for variant in by_variant if variant != "target")
        base = BASE.get(experiment, drafts[0] if drafts else "target")
        summary[str(experiment)] = {
            variant: {
                "seeds": len(by_seed),
                "figures": _figures(by_seed, names),
                "effect": {} if variant == base else _effects(by_seed, by_variant.get(base, {}), names),
            }
            for variant, by_seed in by_variant.items()
        }
    return summary


def _figures(by_seed: dict[int, dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: [run[name] for run in by_seed.values() if name in run] for name in names}
    return {name: interval(numbers) for name, numbers in values.items() if numbers}


def _effects(
    by_seed: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]], names: tuple[str, ...]
) -> dict[str, Any]:
    differences = {
        name: [
            run[name] - base[seed][name] for seed, run in by_seed.items() if name in run and name in base.get(seed, {})
        ]
        for name in names
    }
    return {name: interval(numbers) for name, numbers in differences.items() if numbers}


def interval(values: list[float]) -> tuple[float, float | None]:
    """Mean and half of the 95 % interval; None for one value."""
    if len(values) < 2:
        return values[0], None
    half = student_quantile(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), half


def write_summary(out: Path) -> None:
    summary = summarise(read_runs(out))
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
