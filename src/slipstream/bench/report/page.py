"""Assembles the report page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from slipstream.bench.report.bars import ratios, speeds
from slipstream.bench.report.labels import Palette, Results, is_plain
from slipstream.bench.report.lines import depths, positions
from slipstream.bench.report.roof import roofline
from slipstream.bench.report.tables import all_tables, facts
from slipstream.bench.report.takeaway import machine
from slipstream.bench.table import warnings


def html(results: Results) -> str:
    """The whole page."""
    palette = Palette(results)
    title = f"slipstream bench: {results['model']}"
    parts = [
        f'<p class="eyebrow">{escape(title)} · {escape(str(results["date"])[:10])}</p>',
        f"<h1>{escape(str(results['takeaway']))}</h1>",
        _warnings(results),
        _cards(results),
        _engines(results, palette),
        *_charts(results, palette),
        all_tables(results, palette),
        "<h2>Where these figures come from</h2>",
        f"<pre>{escape(str(results['command']))}</pre>",
        _origin(results),
    ]
    style = files("slipstream.bench.report").joinpath("style.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{style}</style>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _warnings(results: Results) -> str:
    cautions = warnings(results)
    if results.get("scaled"):
        meaning = "Its answers are those of the small model, its cost that of a large one."
        cautions.append(f"Cost-scaled target: {results['scaled']}. {meaning}")
    return "".join(f'<p class="warning">{escape(caution)}</p>' for caution in cautions)


def _engines(results: Results, palette: Palette) -> str:
    """The legend of the page: every engine in its colour, with its label of the model."""
    models = {record["engine"]: record["model"] or results["model"] for record in results["records"]}
    sizes = results["limits"]["target_bytes"]
    lines = [
        f"<li>{palette.key(engine)} <small>{escape(str(model))}, {sizes[engine] / 1e9:.2f} GB a pass</small></li>"
        for engine, model in models.items()
    ]
    return f'<ul class="engines">{"".join(lines)}</ul>'


def _cards(results: Results) -> str:
    """A few figures without intervals."""
    records = results["records"]
    drafted = [record for record in records if not is_plain(record)]
    same = [record["same_answers"] for record in drafted if record["same_answers"] is not None]
    taus = [record["tau"] for record in drafted]
    cards = [
        ("cells measured (setup and load)", f"{len(records)}"),
        ("repeats of each, taking turns", f"{max(record['repeats'] for record in records)}"),
        *([("tau, tokens per cycle", _range(taus))] if taus else []),
        *([("answers as plain decoding's, temperature 0", f"{100 * sum(same) / len(same):.0f} %")] if same else []),
    ]
    shown = "".join(f'<div class="card"><b>{value}</b><span>{escape(name)}</span></div>' for name, value in cards)
    return f'<div class="cards">{shown}</div>'


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _charts(results: Results, palette: Palette) -> list[str]:
    """Every chart with a heading and an explanation. Empty charts are left out."""
    charts = (
        (
            "Against plain decoding",
            "The ratio of decoding speeds, repeat by repeat, with its 95 % interval. It is a gain only where the whole "
            "interval lies right of 1. A line without an end mark goes on beyond the axis.",
            ratios(results, palette),
        ),
        (
            "Tokens per second",
            "After the first tokens. The line is the 95 % interval of the geometric mean, each dot a repeat. Full bars "
            "are plain decoding, light bars draft.",
            speeds(results, palette),
        ),
        ("How deep", "Speed, tokens per cycle and time per cycle against depth.", depths(results, palette)),
        (
            "Where drafts are rejected",
            "The share of cycles in which each drafted position was kept. Their sum and 1 make tau.",
            positions(results, palette),
        ),
        (
            "How far from the machine's limit",
            "Target passes under the measured limits of memory (slope) and arithmetic (flat). Rejected drafts count as "
            "work.",
            roofline(results, palette),
        ),
    )
    return [f'<h2>{title}</h2><p class="about">{about}</p>{chart}' for title, about, chart in charts if chart]


def _origin(results: Results) -> str:
    values = {
        "machine": machine(results),
        "date": results["date"],
        "commit": results["commit"],
        "load average": results.get("load_average"),
        "model": results["model"],
        "sha256 of the weights": results["sha256"],
        **{f"engine {name}": version for name, version in results["engines"].items()},
        **{name: value for name, value in results["hardware"].items() if value is not None},
        **results["versions"],
        **{name: value for name, value in results["settings"].items() if value},
    }
    return facts(values)
