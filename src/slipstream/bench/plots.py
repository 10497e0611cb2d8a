"""Four pictures of a result, each drawn only where there is something to see.

depth      time per token, efficiency and time per cycle against depth, with the spread over repeats (as in figure 1 of
           arXiv 2302.01318)
positions  how much each drafted position adds to tau
roofline   where each cell lies under what memory and arithmetic allow
engines    speeds side by side
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
MARKS = "osD^vP*X<>"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 110,
    "svg.fonttype": "none",
    "svg.hashsalt": "slipstream",
}


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """SVG by name; nothing where matplotlib is not installed."""
    try:
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError:
        return {}
    found = {}
    colours = [*matplotlib.color_sequences["tab10"], *matplotlib.color_sequences["tab20"][1::2]]
    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": cycler(color=colours)}):
        for name, plot in PLOTS.items():
            figure = Figure()
            if plot(figure, results):
                out = io.BytesIO()
                figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
                found[name] = out.getvalue()
    return found


def drafting(record: Record) -> str:
    return "plain" if record["drafter"] == "none" else str(record["drafter"])


def titled(record: Record, *more: str) -> str:
    """What tells a record from others of its plot."""
    words = [record["engine"], drafting(record)]
    if record["drafter"] != "none":
        words += [f"depth {record['depth']}", record["rule"]]
    return " ".join(map(str, [*words, *(f"{record[name]}" for name in more)]))


def load(record: Record) -> str:
    return f"{record['workload']}, batch {record['batch']}, T {record['temperature']:g}"


def by(records: Sequence[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def depth(figure: Any, results: Mapping[str, Any]) -> bool:
    """Lines over fixed depths; depth 0 is plain decoding of the same engine and load."""
    records = [r for r in results["records"] if isinstance(r["depth"], int)]
    plain = {(r["engine"], load(r)): r for r in records if r["drafter"] == "none"}
    lines = by(
        [r for r in records if r["drafter"] != "none"], lambda r: (r["engine"], r["drafter"], r["rule"], load(r))
    )
    lines = {key: found for key, found in lines.items() if len(found) > 1}
    if not lines:
        return False
    figure.set_size_inches(12, 3.6)
    panels = figure.subplots(1, 3)
    for n, ((engine, drafter, rule, what), found) in enumerate(lines.items()):
        found = sorted(found, key=lambda r: int(r["depth"]))
        if (engine, what) in plain:
            found = [plain[engine, what], *found]
        _depth_line(panels, found, f"{engine} {drafter} {rule}: {what}", n)
    titles = ("milliseconds per token", "efficiency: tau / (depth + 1)", "milliseconds per cycle")
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title)
        panel.set_xlabel("depth (0 is plain decoding)")
        panel.set_ylim(bottom=0)
    figure.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0.08, -0.02), ncols=2)
    return True


def _depth_line(panels: Sequence[Any], found: Sequence[Record], label: str, n: int) -> None:
    x = [int(r["depth"]) for r in found]
    mean = [1000 / r["tokens_per_second"] for r in found]
    # of 1/v, to first order: the deviation of v over v squared
    error = [1000 * r["tokens_per_second_deviation"] / r["tokens_per_second"] ** 2 for r in found]
    (line,) = panels[0].plot(x, mean, marker=MARKS[n % len(MARKS)], ms=4, label=label)
    low, high = ([m - e for m, e in zip(mean, error, strict=True)], [m + e for m, e in zip(mean, error, strict=True)])
    panels[0].fill_between(x, low, high, alpha=0.2, color=line.get_color())
    panels[1].plot(x, [r["tau"] / (int(r["depth"]) + 1) for r in found], marker=MARKS[n % len(MARKS)], ms=4)
    panels[2].plot(x, [1000 * r["seconds_per_pass"] for r in found], marker=MARKS[n % len(MARKS)], ms=4)


def positions(figure: Any, results: Mapping[str, Any]) -> bool:
    """The height at position i is the share of cycles that kept it; their sum and 1 make tau."""
    drafted = [r for r in results["records"] if any(r["survival"])]
    lines = by(drafted, lambda r: (r["engine"], r["drafter"], r["rule"], load(r))).values()
    records = [max(found, key=lambda r: len(r["survival"])) for found in lines]  # the deepest shows the others' too
    if not records:
        return False
    figure.set_size_inches(8, 3.8)
    axes = figure.subplots()
    for n, record in enumerate(records):
        heights = [1.0, *record["survival"]]
        label = f"{titled(record)}: {load(record)} (tau {record['tau']:.2f})"
        axes.plot(range(len(heights)), heights, marker=MARKS[n % len(MARKS)], ms=4, label=label)
    axes.set_xlabel("position in the draft (0: the token every cycle gives)")
    axes.set_ylabel("tokens per cycle")
    axes.set_ylim(0, 1.05)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return True


def roofline(figure: Any, results: Mapping[str, Any]) -> bool:
    records = [r for r in results["records"] if r["operations_per_second"]]
    if not records:
        return False
    limits = results["limits"]
    bandwidth, arithmetic = limits["bandwidth"], limits["arithmetic"]
    ridge = arithmetic / bandwidth
    figure.set_size_inches(8, 4.2)
    axes = figure.subplots()
    xs = [min(0.2, *(r["operations_per_byte"] for r in records)), ridge, 8 * ridge]
    roof = [min(arithmetic, bandwidth * x) / 1e9 for x in xs]
    axes.loglog(xs, roof, color="black", lw=1.5, label=f"{bandwidth / 1e9:.1f} GB/s, {arithmetic / 1e9:.0f} GFLOP/s")
    groups = by(records, lambda r: f"{r['engine']} {drafting(r)}")
    for n, (name, found) in enumerate(groups.items()):
        points = [(r["operations_per_byte"], r["operations_per_second"] / 1e9) for r in found]
        axes.loglog(*zip(*points, strict=True), MARKS[n % len(MARKS)], ms=5, alpha=0.75, label=name)
    axes.set_xlabel("operations per byte read")
    axes.set_ylabel("GFLOP/s of target passes")
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return True


def side_by_side(figure: Any, results: Mapping[str, Any]) -> bool:
    """One group of bars per load, one bar per setup, with its interval."""
    records = results["records"]
    loads, setups = list(by(records, load)), list(by(records, titled))
    if not records:
        return False
    figure.set_size_inches(max(6.0, 1.2 + 0.28 * len(loads) * (len(setups) + 1)), 3.8)
    axes = figure.subplots()
    width = 0.85 / len(setups)
    for n, setup in enumerate(setups):
        mine = {load(r): r for r in records if titled(r) == setup}
        at = [i + n * width for i, name in enumerate(loads) if name in mine]
        found = [mine[name] for name in loads if name in mine]
        speeds = [r["tokens_per_second"] for r in found]
        low = [r["tokens_per_second"] - r["tokens_per_second_interval"][0] for r in found]
        high = [r["tokens_per_second_interval"][1] - r["tokens_per_second"] for r in found]
        axes.bar(at, speeds, width * 0.95, yerr=[low, high], capsize=2, error_kw={"lw": 0.8}, label=setup)
    axes.set_xticks([i + 0.425 - width / 2 for i in range(len(loads))], [name.replace(", ", "\n") for name in loads])
    axes.set_ylabel("tokens per second")
    axes.grid(axis="x", visible=False)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return True


PLOTS: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "engines": side_by_side,
    "depth": depth,
    "positions": positions,
    "roofline": roofline,
}
CAPTIONS = {
    "engines": "Tokens per second after the first ones; whiskers are 95 % intervals of the median.",
    "depth": "Speed against depth. Left: time per token, the band is one standard deviation over repeats. Middle: "
    "tokens emitted per token scored. Right: time of one cycle.",
    "positions": "What each drafted position adds to tau: the share of cycles in which it was kept.",
    "roofline": "Target passes under the measured limits of memory and arithmetic. Rejected drafts count as work.",
}
