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
from slipstream.bench.tasks.curve_runs import GRIDS, CurveMeasurement, CurveRun, same_texts
from slipstream.bench.tasks.intervals import interval, paired_interval
from slipstream.bench.tasks.outcome import TaskOutcome, graded
from slipstream.bench.tasks.problems import load_task
from slipstream.bench.tasks.task_session import TaskOptions
from slipstream.core.lossy.deferral import build_score

DEFAULT_RULES = ("cascade_tv", "cascade_token", "bild")


@dataclass(frozen=True)
class CurvePoint:
    """One setup on the curve. `difference`: accuracy minus the large model's, with its paired 95 % interval.

    `timed_large_share`: the large share of the problems that were timed, where these are not all."""

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
    timed_large_share: float | None = None
    dominated: bool = False  # in quality and time
    dominated_in_energy: bool | None = None


def run_curve(options: TaskOptions, small: str, names: Sequence[str], score: str) -> dict[str, Any]:
    """Measure all setups. Writes the answers, `curve.json` and `curve.svg` if a folder is given."""
    scope = options.scope
    curve, runs = answer_curve(options, small, names, score)
    outcomes = graded([run.outcome for run in runs])
    large = next((own for run, own in zip(runs, outcomes, strict=True) if run.kind == "large"), None)
    if large is None:
        raise ValueError("the time limit ended before the large model was measured; give more time")
    points = marked([point(run, own, large) for run, own in zip(runs, outcomes, strict=True)])
    metric = large.task.metric
    results = curve.answers.origin | curve.settings
    if curve.times is not None:
        timing = {"problems": scope.limit, "batch": options.load.batch, "same_texts": same_texts(runs)}
        results |= {"timing": timing | {key: curve.times.origin.get(key) for key in ("hardware", "commit", "date")}}
    results |= {"metric": metric, "points": [asdict(entry) for entry in points], "finding": finding(points)}
    results |= {"missing": curve.missing}
    if options.out:
        name = "curve" if scope.limit is None else f"curve-batch-{options.load.batch}"
        write_whole(options.out / f"{name}.json", json.dumps(rounded(results), indent=1) + "\n")
        write_whole(options.out / f"{name}.svg", picture(results["points"], metric))
    return results


def answer_curve(
    options: TaskOptions, small: str, names: Sequence[str], score: str
) -> tuple[CurveMeasurement, list[CurveRun]]:
    """The answers of all setups, not graded."""
    check_rules(names)
    build_score(score)
    task = load_task(options.task)
    options.scope.check(task)
    curve = CurveMeasurement(options, task, small, names, score)
    return curve, curve.runs()


def curve_rules(verify: str) -> list[str]:
    """The lossy rules that `--verify` names; none for `none`."""
    if verify == "auto":
        return list(DEFAULT_RULES)
    return [] if verify == "none" else [word.strip() for word in verify.split(",")]


def check_rules(names: Sequence[str]) -> None:
    for name in names:
        if name not in GRIDS:
            raise ValueError(f"verify is {name!r}; a curve takes none, or the lossy rules {', '.join(GRIDS)}")


def point(run: CurveRun, outcome: TaskOutcome, large: TaskOutcome) -> CurvePoint:
    """A graded setup. Time and energy are those of the timed answers."""
    kind, timed = run.kind, run.timed or outcome
    differences = [ours - theirs for ours, theirs in zip(outcome.right, large.right, strict=True)]
    joules = None if timed.joules is None else timed.joules / len(timed.answers)
    return CurvePoint(
        run.name,
        kind,
        outcome.accuracy,
        interval(outcome.right),
        sum(differences) / len(differences),
        (0.0, 0.0) if outcome is large else paired_interval(differences),
        timed.seconds,
        joules,
        0.0 if kind == "small" else outcome.large_share,
        kind in ("large", "exact"),
        "plain" if kind in ("small", "large") else outcome.rule,
        None if run.timed is None or kind == "small" else timed.large_share,
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
    print(measured_where(results))
    print(results["finding"], flush=True)


def measured_where(results: Mapping[str, Any]) -> str:
    """What was measured on which problems, and what is missing."""
    quality, timing = f"{results['problems']} problems, {results['batch']} at a time", results.get("timing")
    if timing is None:
        said = f"quality, time and energy: {quality}{_machine(results)}"
    else:
        said = (
            f"quality: {quality}{_machine(results)}; time and energy: {timing['problems']} of them, "
            f"{timing['batch']} at a time{_machine(timing)}; "
            f"{100 * timing['same_texts']:.0f} % of the timed answers are the graded ones, letter for letter"
        )
    return said + (f"; not measured: {', '.join(results['missing'])}" if results["missing"] else "")


def _machine(origin: Mapping[str, Any]) -> str:
    hardware = origin.get("hardware") or {}
    name = hardware.get("accelerator") or hardware.get("processor")
    return f", on {name}" if name else ""
