"""Latency against joules per token: levels, depths, batches, and weights in 16 and 8 bits.

    python benchmarks/energy.py [--model smollm2-135m] [--drafter eagle] [--device auto] [--dtypes bfloat16 fp8]
        [--depths 1 3 5] [--batches 1 8 64] [--workload code:2,chat:2] [--tokens 128] [--seconds 2.1] [--warm 1]
        [--watts POWER] [--no-phases] [--out FOLDER]

Each way decodes the same prompts greedily for some seconds, because the energy counter of a GPU is slow, and for
`--warm` seconds before, in which a GPU compiles kernels and captures graphs. O0 is plain decoding, O3 lets the policy
choose the depth, and the others have a fixed depth. The way that `-O e` takes, by its own measurement of one request at
a time, is marked Oe at batch 1. The table has the milliseconds of a token of one request, tokens per second and joules
per token of all requests, and the power. A way is on the frontier where no other way of the same batch is both quicker
and cheaper. The energy of one drafter is also split by phase, for the smallest and the largest batch. With `--out` the
folder gets `energy.json`, `energy.md` and `energy.svg`.

Without an energy counter the script says so and exits with 2. `--watts` states a power; all figures are then estimates.
On one H200 the default settings take about 150 seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.figures import measure_energy_figures
from slipstream.bench.measure.energy import gauge, power_model
from slipstream.bench.measure.measurement import Load, Measurement, add_run
from slipstream.bench.measure.phase_energy import PHASES, PhaseLoad
from slipstream.bench.measure.phases import energy_by_phase
from slipstream.bench.measure.provenance import commit, load_average, provenance
from slipstream.bench.measure.token_energy import token_energy
from slipstream.bench.report.svg import Plot
from slipstream.bench.workloads import Item, load_workloads
from slipstream.engines.base import Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target

COLOURS = ("#0b6e99", "#c4521b", "#3c7a1e", "#7a3c9e")
PAGE = ":root{--grid:#e9ecef;--panel:#fff} text{font:11px sans-serif;fill:#16202c} .title{font-weight:bold}"
Row = dict[str, Any]


def ways(depths: Sequence[int]) -> dict[str, Speculation]:
    """The ways to decode: levels and depths."""
    fixed = {f"depth {depth}": Speculation(depth=depth) for depth in depths}
    return {"O0 (plain)": Speculation(off=True), **fixed, "O3 (policy)": Speculation()}


def frugal(target: Target, given: argparse.Namespace) -> int:
    """The depth that `-O e` takes, 0 for plain decoding."""
    figures = measure_energy_figures(target, {given.drafter: {}}, given.depths)
    return figures.frugal(None)[1].depth


def measured(target: Target, given: argparse.Namespace, dtype: str, items: Sequence[Item]) -> list[Row]:
    """All ways and batches with weights of one kind."""
    rows, chosen = list[Row](), frugal(target, given)
    limits = Limits(rows=max(given.batches), retained=0)
    with NativeEngine(target, given.drafter, limits=limits, profile="none") as engine:
        for batch in given.batches:
            for way, speculation in ways(given.depths).items():
                load = Load(batch, 0.0, given.tokens, speculation)
                began = time.perf_counter()
                while time.perf_counter() - began < given.warm:
                    add_run(engine, items, load, Measurement())
                found = token_energy(engine, items, load, given.seconds)
                assert found.seconds_per_token is not None, "there is a counter, or a power is stated"
                mark = ", Oe" if batch == 1 and way != "O3 (policy)" and (speculation.depth or 0) == chosen else ""
                rows.append({
                    "weights": dtype, "batch": batch, "way": way + mark, "tau": found.tau,
                    "ms_per_token": 1000 * batch * found.seconds_per_token,
                    "tokens_per_second": 1 / found.seconds_per_token,
                    "joules_per_token": found.joules_per_token, "watts": found.watts, "source": found.source,
                })  # fmt: skip
                print("  ".join(cells(rows[-1])), flush=True)
    return rows


def with_frontier(rows: Sequence[Row]) -> list[Row]:
    """Each row with `frontier`: no other way of its batch is quicker and cheaper."""
    marked = []
    for row in rows:
        others = [other for other in rows if other["batch"] == row["batch"] and other is not row]
        beaten = any(
            other["ms_per_token"] <= row["ms_per_token"] and other["joules_per_token"] <= row["joules_per_token"]
            for other in others
        )
        marked.append({**row, "frontier": not beaten})
    return marked


def cells(row: Row) -> list[str]:
    figures = [f"{row['tau']:.2f}", f"{row['ms_per_token']:.3f}", f"{row['tokens_per_second']:.0f}"]
    figures += [f"{row['joules_per_token']:.4f}", f"{row['watts']:.0f}"]
    return [row["weights"], str(row["batch"]), row["way"], *figures, *(["yes"] if row.get("frontier") else [""])]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    names = ["weights", "batch", "way", "tau", "ms/token", "tokens/s", "J/token", "W", "frontier"]
    lines = [names, ["---", "--:", "---", *["--:"] * 5, "---"], *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def picture(rows: Sequence[Row]) -> str:
    """Both axes are logarithmic. One line for each batch and kind of weights; the first mark is plain decoding."""
    across, up = ([row[name] for row in rows] for name in ("ms_per_token", "joules_per_token"))
    plot = Plot(
        "joules per token over milliseconds per token of a request", (0.8 * min(across), 1.25 * max(across)),
        (0.8 * min(up), 1.25 * max(up)), 720, 420, log=True,
    )  # fmt: skip
    marks = [base * 10.0**power for power in range(-5, 6) for base in (1, 2, 5)]
    inside = [[mark for mark in marks if low <= mark <= high] for low, high in (plot.x, plot.y)]
    plot.grid([(mark, f"{mark:g}") for mark in inside[0]], inside[1], "milliseconds per token of a request")
    groups = list(dict.fromkeys((row["weights"], row["batch"]) for row in rows))
    kinds = list(dict.fromkeys(row["weights"] for row in rows))
    for weights, batch in groups:
        own = [row for row in rows if (row["weights"], row["batch"]) == (weights, batch)]
        batches = list(dict.fromkeys(row["batch"] for row in rows))
        colour, number = COLOURS[batches.index(batch) % len(COLOURS)], kinds.index(weights)
        plot.line([(row["ms_per_token"], row["joules_per_token"]) for row in own], colour, number)
        for row in own:
            about = f"{weights}, batch {batch}, {row['way']}: {row['joules_per_token']:.3g} J"
            plot.mark((row["ms_per_token"], row["joules_per_token"]), colour, number, about)
        first = own[0]
        apart = 18 if number % 2 else -8  # above the mark, or below it
        where = plot.across(first["ms_per_token"]), plot.up(first["joules_per_token"]) + apart
        plot.text(*where, f"{weights}, batch {batch}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{plot.width}" height="{plot.height}">'
    return f'{head}<style>{PAGE}</style><rect width="100%" height="100%" fill="#fff"/>{plot.svg()}</svg>\n'


def by_phase(target: Target, given: argparse.Namespace, items: Sequence[Item]) -> list[Row]:
    """The energy of the middle depth by phase, for the smallest and the largest batch."""
    found = []
    for batch in dict.fromkeys((min(given.batches), max(given.batches))):
        depth = given.depths[len(given.depths) // 2]
        load = PhaseLoad(given.drafter, depth, batch, seconds=given.seconds, max_tokens=given.tokens)
        energy = energy_by_phase(target, load, items)
        if isinstance(energy, str):
            print(f"no energy by phase at batch {batch}: {energy}")
            continue
        shown = ", ".join(f"{name} {energy.phases[name]:.4f}" for name in PHASES)
        print(
            f"batch {batch}, depth {depth}: {shown} J/token; wasted {energy.wasted:.4f}; "
            f"idle {'not known' if energy.idle is None else f'{energy.idle:.4f}'}; "
            f"whole run {energy.joules_per_token:.4f}; closure error {100 * energy.closure_error:+.1f} %",
            flush=True,
        )
        found.append(energy.to_json())
    return found


def run(given: argparse.Namespace) -> dict[str, Any]:
    items = [item for workload in load_workloads(given.workload) for item in workload.items]
    rows, phases, target = list[Row](), list[Row](), None
    for dtype in given.dtypes:
        target = build_target(given.model, dtype=dtype, device=given.device)
        rows += measured(target, given, dtype, items)
        if given.phases and dtype == given.dtypes[0]:
            phases = by_phase(target, given, items)
    assert target is not None, "there is at least one kind of weights"
    origin = {"commit": commit(), "load": load_average(), **provenance(target.files, sys.argv)}
    return {"origin": origin, "points": with_frontier(rows), "phases": phases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "fp8"])
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--workload", default="code:2,chat:2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.1)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--watts", type=float)
    parser.add_argument("--no-phases", dest="phases", action="store_false")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with power_model(given.watts):
        if isinstance(reason := gauge(given.device), str):
            print(f"no joules per token: {reason}; --watts states a power for an estimate", file=sys.stderr)
            sys.exit(2)
        results = run(given)
    print(table(results["points"]))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "energy.json").write_text(json.dumps(results, indent=1) + "\n")
        (given.out / "energy.md").write_text(table(results["points"]))
        (given.out / "energy.svg").write_text(picture(results["points"]))


if __name__ == "__main__":
    main()
