"""Every drafter on five workloads: tau, the cost of a drafted token, and speed compared with plain decoding.

    python benchmarks/drafters.py [--model NAME] [--drafters NAME …] [--workloads chat:2,code:2,…] [--device auto]
                                  [--temperatures 0 1] [--shapes chain tree] [--depth 5] [--tokens 48] [--repeats 3]
                                  [--out FOLDER]

NAME may be a folder. A drafter that cannot be built for the model is left out, with the reason. `chain` drafts
`--depth` tokens, `tree` up to 24 nodes where the drafter has trees. Each drafter runs in an engine of its own,
interleaved with plain decoding of the same requests. The order turns round with every repeat, and the first repeat
warms up. Above temperature 0, chains are verified by block, and trees by chosen, or by no_replace where the drafter
has no chosen candidates. Requests neither read nor add to the history of outputs: `suffix` would find the same answers
from the repeat before.

The cost of a drafted token is the time of a drafting cycle beyond that of a plain cycle, per drafted token, as a share
of a plain cycle. It includes the longer score pass. Intervals are 95 % by Student's distribution over the repeats.
FOLDER gets `results.json`, which a second call with the same settings resumes, and `drafters.svg`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from trees import machine

import slipstream as ss
from slipstream.bench.statistics import student_quantile
from slipstream.bench.workloads import Workload, load_workloads
from slipstream.core.interfaces import sibling_mode
from slipstream.core.rules import rules
from slipstream.drafters import drafters
from slipstream.drafters.build import drafter_kind
from slipstream.engines.native.engine import NativeEngine

NODES = 24
MARKERS = {"chain": "o", "tree": "^"}  # of the picture
TICKS = (0.03, 0.1, 0.3, 1.0)
FIGURES = ("tau", "cost", "tokens_per_second", "against_plain")
RESUMABLE = ("model", "device", "depth", "tokens", "repeats")  # settings that all records of a folder share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafters", nargs="+", default=[name for name in drafters.names() if name != "none"])
    parser.add_argument("--workloads", default="chat:2,code:2,maths:2,summary:2,translation:2")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--shapes", nargs="+", choices=("chain", "tree"), default=["chain", "tree"])
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("drafters-results"))
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error("--repeats must be 2 or more: an interval needs two values")
    results = resumed(args)
    for name in args.drafters:
        measure_drafter(name, results, args)
    show(results)
    draw(results, args.out / "drafters.svg")


def resumed(args: argparse.Namespace) -> dict:
    """The results of an earlier call with the same settings, or empty ones."""
    settings = {name: getattr(args, name) for name in RESUMABLE}
    path = args.out / "results.json"
    if path.exists():
        results: dict = json.loads(path.read_text())
        if results["settings"] != settings:
            raise SystemExit(f"{path} was measured with {results['settings']}; name another folder")
        return results
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"settings": settings, "machine": machine(), "commit": commit, "left_out": {}, "records": []}


def save(results: dict, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "results.json.partial"
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(folder / "results.json")


def measure_drafter(name: str, results: dict, args: argparse.Namespace) -> None:
    """Measure the cells of one drafter that are not measured yet."""
    done = {
        tuple(record[key] for key in ("drafter", "digest", "temperature", "shape")) for record in results["records"]
    }
    works = load_workloads(args.workloads)
    cells = [(work, heat, shape) for work in works for heat in args.temperatures for shape in args.shapes]
    cells = [cell for cell in cells if (name, cell[0].digest, cell[1], cell[2]) not in done]
    if not cells:
        return
    try:
        engine = NativeEngine(args.model, name, device=args.device, limits=ss.Limits(rows=1, retained=0))
    except (ValueError, ImportError) as error:
        results["left_out"][name] = str(error)
        save(results, args.out)
        return
    with engine:
        for work, heat, shape in cells:
            try:
                figures = measure(engine, work, speculation(name, shape, heat, args.depth), heat, args)
            except ValueError as error:  # the drafter has no trees
                results["left_out"][f"{name}, {shape}, T = {heat:g}"] = str(error)
            else:
                cell = {"drafter": name, "workload": work.name, "digest": work.digest, "temperature": heat}
                results["records"].append(cell | {"shape": shape} | figures)
            save(results, args.out)


def speculation(name: str, shape: str, heat: float, depth: int) -> ss.Speculation:
    """The settings of a request. At temperature 0 the rule is the greedy one."""
    if shape == "chain":
        return ss.Speculation(depth=depth, verify="block" if heat else None, history=False)
    kind = drafters.get(drafter_kind(name))
    fitting = [rule for rule in ("chosen", "no_replace") if sibling_mode(rules.get(rule)(), kind)]
    if not fitting:
        raise ValueError("it drafts chains only")
    return ss.Speculation(shape=NODES, verify=fitting[0] if heat else None, history=False)


def measure(
    engine: NativeEngine, work: Workload, drafting: ss.Speculation, heat: float, args: argparse.Namespace
) -> dict:
    """Tau, cost of a drafted token and speed of one cell, each as (mean, half of its interval)."""
    ways = {"plain": ss.Speculation(off=True, history=False), "draft": drafting}
    runs: dict[str, list[tuple[float, int, int, int]]] = {way: [] for way in ways}  # seconds, cycles, emitted, drafted
    for repeat in range(args.repeats + 1):
        for way in list(ways) if repeat % 2 else list(ways)[::-1]:
            began, done = time.perf_counter(), []
            for i, item in enumerate(work.items):
                sampling = ss.Sampling(temperature=heat, seed=1000 * repeat + i)
                done += engine.generate(item.turns[:1], sampling, max_tokens=args.tokens, speculation=ways[way])
            spent = time.perf_counter() - began
            counts = [(c.stats.cycles, len(c.token_ids), sum(c.stats.drafted)) for c in done]
            runs[way].append((spent, *(sum(column) for column in zip(*counts, strict=True))))
    values: dict[str, list[float]] = {name: [] for name in FIGURES}
    for plain, draft in list(zip(runs["plain"], runs["draft"], strict=True))[1:]:
        cycle, drafting_cycle = plain[0] / plain[1], draft[0] / draft[1]
        values["tau"].append(draft[2] / draft[1])
        if draft[3]:
            values["cost"].append((drafting_cycle - cycle) / (draft[3] / draft[1]) / cycle)
        values["tokens_per_second"].append(draft[2] / draft[0])
        values["against_plain"].append(draft[2] / draft[0] / (plain[2] / plain[0]))
    return {name: interval(numbers) for name, numbers in values.items()}


def interval(values: list[float]) -> tuple[float, float] | None:
    """Mean and half of the 95 % interval; None where too few values were measured."""
    if len(values) < 2:
        return None
    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), student_quantile(len(values) - 1) * spread


def shown(figure: tuple[float, float] | None, digits: int) -> str:
    return "-" if figure is None else f"{figure[0]:.{digits}f} ± {figure[1]:.{digits}f}"


def show(results: dict) -> None:
    table = Table(title=f"{results['settings']['model']}, {results['machine']}, commit {results['commit']}")
    for name in ("drafter", "workload", "T", "shape", "tau", "cost of a token", "tokens/s", "of plain"):
        table.add_column(name, justify="left" if name in ("drafter", "workload", "shape") else "right")
    for record in results["records"]:
        figures = (shown(record[name], digits) for name, digits in zip(FIGURES, (2, 2, 1, 2), strict=True))
        cell = record["drafter"], record["workload"], f"{record['temperature']:g}", record["shape"]
        table.add_row(*cell, *figures)
    console = Console(width=120)
    console.print(table)
    for name, reason in results["left_out"].items():
        console.print(f"left out: {name}: {reason}", style="dim", soft_wrap=True)


def draw(results: dict, path: Path) -> None:
    """A point for each drafter, shape and temperature: mean tau and mean cost of a drafted token over the workloads."""
    try:
        from matplotlib import colormaps, rc_context
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError:
        print("matplotlib is not installed, so no picture is drawn")
        return
    groups: dict[tuple[str, str, float], list[dict]] = {}
    for record in results["records"]:
        if record["cost"] is not None:
            groups.setdefault((record["drafter"], record["shape"], record["temperature"]), []).append(record)
    heats = sorted({heat for _, _, heat in groups})
    if not heats:
        return
    means = {
        group: [statistics.mean(record[key][0] for record in records) for key in ("cost", "tau")]
        for group, records in groups.items()
    }
    shades = [*colormaps["tab10"].colors, *colormaps["Set2"].colors]
    colours = dict(zip(drafters.names(), shades, strict=False))  # a drafter has the same one in every picture
    names = [*dict.fromkeys(name for name, _, _ in groups)]
    costs = [cost for cost, _ in means.values()]
    scale = "log" if max(costs) > 5 * min(costs) else "linear"
    figure = Figure(figsize=(4.3 * len(heats) + 1.4, 4), layout="constrained")
    for axis, heat in zip(
        figure.subplots(1, len(heats), sharex=True, sharey=True, squeeze=False)[0], heats, strict=True
    ):
        for shape, marker in MARKERS.items():
            points = {name: mean for (name, own, own_heat), mean in means.items() if (own, own_heat) == (shape, heat)}
            if points:
                shades = [colours.get(name, "black") for name in points]
                axis.scatter(*zip(*points.values(), strict=True), marker=marker, s=45, c=shades, alpha=0.8)
        axis.set(title=f"T = {heat:g}", xlabel="cost of a drafted token, share of a target pass", xscale=scale)
        if scale == "log":
            axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
            axis.set_xticks([], minor=True)
    figure.axes[0].set_ylabel("tau")
    handles = [Line2D([], [], linestyle="", marker="s", color=colours.get(name, "black"), label=name) for name in names]
    handles += [Line2D([], [], linestyle="", marker=MARKERS[s], color="black", mfc="none", label=s) for s in MARKERS]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "drafters", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(path, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))


if __name__ == "__main__":
    main()
