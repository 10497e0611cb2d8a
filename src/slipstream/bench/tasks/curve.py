"""`bench --curve`: quality against time and against energy, for small alone, large alone, exact speculation and every
cascade at five settings. Points that another point beats are marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slipstream.bench.journal import write_whole
from slipstream.bench.session import rounded
from slipstream.bench.table import ResultTable, text
from slipstream.bench.tasks.curve_picture import picture
from slipstream.bench.tasks.curve_runs import GRIDS, CurveRun, RunFile, curve_runs
from slipstream.bench.tasks.intervals import interval, paired_interval
from slipstream.bench.tasks.outcome import TaskOutcome, graded
from slipstream.bench.tasks.problems import TaskSet, load_task
from slipstream.bench.tasks.task_session import TaskOptions, origin_of
from slipstream.core.lossy.deferral import build_score

DEFAULT_RULES = ("cascade_tv", "cascade_token", "bild")


@dataclass(frozen=True)
class CurvePoint:
    """One setup on the curve. `difference`: accuracy minus the large model's, with its paired 95 % interval."""

    name: str
    kind: str  # small, large, exact, request or the name of a rule
    accuracy: float
    accuracy_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    seconds_per_request: float
    joules_per_request: float | None
    large_share: float
    lossless: bool
    rule: str
    dominated: bool = False  # in quality and time
    dominated_in_energy: bool | None = None


def run_curve(options: TaskOptions, small: str, names: Sequence[str], score: str) -> dict[str, Any]:
    """Measure all setups. Writes `answers.jsonl`, `curve.json` and `curve.svg` if a folder is given."""
    task = load_task(options.task)
    saved, settings, runs = answer_curve(options, task, small, names, score)
    outcomes = graded([run.outcome for run in runs])
    large = next(outcome for run, outcome in zip(runs, outcomes, strict=True) if run.kind == "large")
    points = marked([point(run.name, run.kind, own, large) for run, own in zip(runs, outcomes, strict=True)])
    results = saved.origin | settings
    results |= {"metric": task.metric, "points": [asdict(entry) for entry in points], "finding": finding(points)}
    if options.out:
        write_whole(options.out / "curve.json", json.dumps(rounded(results), indent=1) + "\n")
        write_whole(options.out / "curve.svg", picture(results["points"], task.metric))
    return results


def answer_curve(
    options: TaskOptions, task: TaskSet, small: str, names: Sequence[str], score: str
) -> tuple[RunFile, dict[str, Any], list[CurveRun]]:
    """The answers of all setups, not graded, with the file they are in and the settings."""
    check_rules(names)
    build_score(score)
    setup, load = options.setup, options.load
    settings = {
        "task": task.name,
        "problems": len(task.problems),
        "temperature": load.sampling.temperature,
        "max_tokens": load.max_tokens,
        "batch": load.batch,
        "score": score,
    }
    file = None if options.out is None else options.out / "answers.jsonl"
    saved = RunFile(file, task, settings, lambda: origin_of(setup, small, options.command))
    return saved, settings, curve_runs(options, task, small, names, score, saved)


def curve_rules(verify: str) -> list[str]:
    """The lossy rules that `--verify` names; none for `none`."""
    if verify == "auto":
        return list(DEFAULT_RULES)
    return [] if verify == "none" else [word.strip() for word in verify.split(",")]


def check_rules(names: Sequence[str]) -> None:
    for name in names:
        if name not in GRIDS:
            raise ValueError(f"verify is {name!r}; a curve takes none, or the lossy rules {', '.join(GRIDS)}")


def point(name: str, kind: str, outcome: TaskOutcome, large: TaskOutcome) -> CurvePoint:
    differences = [ours - theirs for ours, theirs in zip(outcome.right, large.right, strict=True)]
    joules = None if outcome.joules is None else outcome.joules / len(outcome.answers)
    return CurvePoint(
        name,
        kind,
        outcome.accuracy,
        interval(outcome.right),
        sum(differences) / len(differences),
        (0.0, 0.0) if outcome is large else paired_interval(differences),
        outcome.seconds,
        joules,
        0.0 if kind == "small" else outcome.large_share,
        kind in ("large", "exact"),
        "plain" if kind in ("small", "large") else outcome.rule,
    )


def marked(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Points with their marks: a dominated point is neither better nor cheaper than another, and worse in one."""

    def beaten(entry: CurvePoint, cost: str) -> bool | None:
        own = getattr(entry, cost)
        if own is None:
            return None
        others = ((other.accuracy, getattr(other, cost)) for other in points if getattr(other, cost) is not None)
        return any(q >= entry.accuracy and c <= own and (q, c) != (entry.accuracy, own) for q, c in others)

    return [
        replace(
            entry,
            dominated=bool(beaten(entry, "seconds_per_request")),
            dominated_in_energy=beaten(entry, "joules_per_request"),
        )
        for entry in points
    ]


def finding(points: Sequence[CurvePoint]) -> str:
    """The fastest cascade whose quality is not clearly below the large model's, in one sentence."""
    large = next(entry for entry in points if entry.kind == "large")
    able = [entry for entry in points if not entry.lossless and entry.kind != "small" and _level(entry)]
    if not able:
        return "no cascade is within the paired interval's width of the large model's quality"
    best = min(able, key=lambda entry: entry.seconds_per_request)
    ratio = best.seconds_per_request / large.seconds_per_request
    return (
        f"{best.name}: {100 * best.difference:+.1f} points against the large model (95 % interval "
        f"{100 * best.difference_interval[0]:+.1f} to {100 * best.difference_interval[1]:+.1f}) "
        f"at {ratio:.2f} of its time"
    )


def _level(entry: CurvePoint) -> bool:
    """Whether its quality is below the large model's by no more than the paired interval's width."""
    low, high = entry.difference_interval
    return entry.difference + high - low >= 0


def show_curve(results: Mapping[str, Any]) -> None:
    columns = ["setup", results["metric"], "minus large", "s/request", "J/request", "large share", "lossless", ""]
    rows = [
        [
            entry["name"],
            f"{entry['accuracy']:.3f}",
            "{:+.3f} ({:+.3f} to {:+.3f})".format(entry["difference"], *entry["difference_interval"]),
            f"{entry['seconds_per_request']:.3g}",
            "-" if entry["joules_per_request"] is None else f"{entry['joules_per_request']:.3g}",
            f"{entry['large_share']:.2f}",
            str(entry["lossless"]).lower(),
            "dominated" if entry["dominated"] else "",
        ]
        for entry in results["points"]
    ]
    print(text(ResultTable(f"{results['task']}, {results['problems']} problems", columns, rows)))
    print(results["finding"], flush=True)
