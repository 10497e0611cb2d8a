"""Draws the curves of the experiments, from the runs of `run.py`. Needs matplotlib.

    python benchmarks/experiments/charts.py DIR [--pictures FOLDER]

Writes `experiment-N.svg` for each experiment. Where wandb is installed and WANDB_PROJECT is set, curves and pictures
are logged there, too.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure
from summary import interval, read_runs

Curves = dict[str, list[tuple[float, float, float]]]  # variant -> step, mean, half of the interval
PANELS: dict[int, dict[str, str]] = {  # figure -> title
    1: {
        "draft_loss_mean": "loss of the drafter",
        "tau_greedy": "tau, greedy",
        "tau_sampled": "tau, T = 1",
        "tokens_per_second": "tokens/s, greedy",
    },
    2: {
        "text_loss": "loss of the main model",
        "text_loss_effect": "difference to no head",
        "tau_greedy": "tau, greedy",
    },
    3: {"text_loss": "loss of the main model", "tau_greedy": "tau, greedy", "tau_sampled": "tau, T = 1"},
    4: {"text_loss": "loss"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    folder: Path = args.pictures or args.out
    folder.mkdir(parents=True, exist_ok=True)
    by_experiment: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for run in read_runs(args.out):
        by_experiment[run["experiment"]].append(run)
    for experiment, runs in sorted(by_experiment.items()):
        path = folder / f"experiment-{experiment}.svg"
        draw(experiment, runs, path)
        print(path)
    if find_spec("wandb") and os.environ.get("WANDB_PROJECT"):
        log(by_experiment)


def draw(experiment: int, runs: list[dict[str, Any]], path: Path) -> None:
    rcParams["svg.fonttype"] = "none"  # letters as text: a quarter of the bytes
    panels = {title: curves(runs, figure) for figure, title in PANELS[experiment].items()}
    if experiment == 4:
        panels["tau and tokens/s of a draft model"] = {}
    panels = {title: lines for title, lines in panels.items() if lines or experiment == 4}
    picture = Figure(figsize=(3.6 * len(panels), 3.2), layout="constrained")
    axes = picture.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.set_title(title, fontsize="medium")
        if not lines:
            draw_shapes(axis, runs)
            continue
        for variant, points in lines.items():
            step, mean, half = (list(column) for column in zip(*points, strict=True))
            axis.plot(step, mean, marker="o", markersize=3, label=variant)
            low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
            axis.fill_between(step, low, high, alpha=0.2)
        axis.set_xlabel("step")
        axis.legend(fontsize="small")
    picture.savefig(path, metadata={"Date": None})
    path.write_text(smaller(path.read_text()))


def smaller(svg: str) -> str:
    """The same picture in fewer bytes: numbers to a tenth of a point, one font, no metadata."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!DOCTYPE.*?>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", svg)
    svg = re.sub(r"-?\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip() + "\n"


def curves(runs: list[dict[str, Any]], figure: str) -> Curves:
    """The mean over seeds of one figure at every step of a curve."""
    values: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        for entry in run["curve"]:
            value = figure_at(run, entry, figure.removesuffix("_effect"))
            if value is not None:
                values[run["variant"]][entry["step"]][run["seed"]] = value
    if figure.endswith("_effect"):
        base = values.pop("none", {})
        for points in values.values():
            for step, by_seed in points.items():
                points[step] = {s: v - base[step][s] for s, v in by_seed.items() if s in base.get(step, {})}
    lines: Curves = {}
    for variant, points in values.items():
        estimates = [(step, *interval(list(by_seed.values()))) for step, by_seed in sorted(points.items()) if by_seed]
        if estimates:
            lines[variant] = [(step, mean, half or 0.0) for step, mean, half in estimates]
    return lines


def figure_at(run: dict[str, Any], entry: dict[str, Any], figure: str) -> float | None:
    """One value of a curve. The time of a cycle does not change in training, so tokens/s follow from tau."""
    if figure == "draft_loss_mean":
        return statistics.mean(entry["draft_loss"]) if entry.get("draft_loss") else None
    if figure == "tokens_per_second":
        cycle = run.get("speed", {}).get("cycle_seconds")
        return entry["tau_greedy"] / cycle if cycle and "tau_greedy" in entry else None
    return entry.get(figure)


def draw_shapes(axis: Any, runs: list[dict[str, Any]]) -> None:
    """Tau and speed of every shape, a point for each seed."""
    measured = [run for run in runs if "tau" in run.get("speed", {})]
    for variant in sorted({run["variant"] for run in measured}):
        points = [run["speed"] for run in measured if run["variant"] == variant]
        axis.scatter([p["tau"] for p in points], [p["tokens_per_second"] for p in points], label=variant)
    axis.set(xlabel="tau, greedy", ylabel="tokens/s")
    if measured:
        axis.legend(fontsize="small")


def log(by_experiment: dict[int, list[dict[str, Any]]]) -> None:
    import wandb

    for experiment, runs in by_experiment.items():
        for run in runs:
            name = f"{experiment}-{run['variant']}-{run['seed']}"
            group = f"experiment-{experiment}"
            logged = wandb.init(name=name, group=group, config={"variant": run["variant"], "seed": run["seed"]})
            for entry in run["curve"]:
                logged.log(
                    {key: value for key, value in entry.items() if not isinstance(value, list)}, step=entry["step"]
                )
            logged.finish()


if __name__ == "__main__":
    main()
