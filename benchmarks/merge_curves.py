"""One curve of several runs of `slipstream bench --curve` for the same pair of models and the same problems.

    python benchmarks/merge_curves.py FILE.json[.gz] … --out FOLDER

Runs differ in machine and time. So seconds and joules of a run are divided by those of its own large model alone, and
multiplied by those of the last file's. Points of several files: the last file's counts. Writes `curve.json`,
`curve.svg` and `curve.md`, a table.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from slipstream.bench.tasks.curve import CurvePoint, finding, marked
from slipstream.bench.tasks.curve_picture import picture

SAME = ("sha256", "small_sha256", "task", "problems", "temperature", "max_tokens")
COSTS = ("seconds_per_request", "joules_per_request")


def read(path: Path) -> dict[str, Any]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    results: dict[str, Any] = json.loads(text)
    return results


def merged(runs: Sequence[Mapping[str, Any]]) -> list[CurvePoint]:
    """All points in the order of their kinds, at the last run's cost of the large model alone."""
    scale, points = large(runs[-1]), dict[str, CurvePoint]()
    for run in runs:
        own = large(run)
        routes = {name for name, entry in points.items() if entry.kind == "request"}
        for name in routes:  # their thresholds are quantiles, so they have other names in every run
            del points[name]
        for entry in run["points"]:
            costs = {cost: _scaled(entry[cost], own[cost], scale[cost]) for cost in COSTS}
            points[entry["name"]] = CurvePoint(
                **{field.name: entry[field.name] for field in fields(CurvePoint)} | costs
            )
    kinds = list(dict.fromkeys(entry["kind"] for run in runs for entry in run["points"]))
    return marked(sorted(points.values(), key=lambda entry: kinds.index(entry.kind)))


def _scaled(cost: float | None, own: float | None, scale: float | None) -> float | None:
    return None if cost is None or not own or scale is None else cost / own * scale


def large(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(entry for entry in run["points"] if entry["kind"] == "large")


def table(points: Sequence[CurvePoint], metric: str) -> str:
    whole = next(entry for entry in points if entry.kind == "large")
    lines = [f"| point | {metric} | minus large (95 %) | time of large | energy of large | large share | |"]
    lines.append("|---|--:|---|--:|--:|--:|---|")
    for entry in points:
        low, high = entry.difference_interval
        energy = entry.joules_per_request, whole.joules_per_request
        share = f"{energy[0] / energy[1]:.2f}" if energy[0] and energy[1] else ""
        lines.append(
            f"| {entry.name} | {entry.accuracy:.3f} | {entry.difference:+.3f} ({low:+.3f} to {high:+.3f}) | "
            f"{entry.seconds_per_request / whole.seconds_per_request:.2f} | {share} | {entry.large_share:.2f} | "
            f"{'dominated' if entry.dominated else ''} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    runs = [read(path) for path in given.files]
    if len({tuple(run[key] for key in SAME) for run in runs}) > 1:
        parser.error(f"the files differ in one of {', '.join(SAME)}")
    points, metric = merged(runs), runs[-1]["metric"]
    results = {"files": [path.name for path in given.files], **{key: runs[-1][key] for key in ("metric", *SAME)}}
    results |= {"points": [asdict(entry) for entry in points], "finding": finding(points)}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "curve.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "curve.svg").write_text(picture(results["points"], metric))
    (given.out / "curve.md").write_text(table(points, metric))
    print(table(points, metric), results["finding"], sep="\n")


if __name__ == "__main__":
    main()
