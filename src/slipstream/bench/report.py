"""One HTML file that holds everything: tables, pictures, where the figures come from. It loads nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

from slipstream.bench.plots import CAPTIONS, draw
from slipstream.bench.table import LEGEND, Table, busy, headline, tables

STYLE = """
:root { --ink: #1c2330; --paper: #fff; --soft: #5b6575; --line: #d9dee6; --band: #f5f7fa; --mark: #0a7d4b; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 1480px; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.about, figcaption, .legend { color: var(--soft); font-size: .88rem; }
.warning { border-left: 4px solid #c77700; padding: .4rem .8rem; background: #fff6e5; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } tr:nth-child(even) td { background: var(--band); }
.left { text-align: left; } figure { margin: 1rem 0 2rem; } img { max-width: 100%; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .85rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; } code { font-size: .85rem; }
"""
NO_PLOTS = "The pictures need matplotlib: pip install 'slipstream-lm[bench]', and the same command again."


def html(results: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [
        f"<h1>slipstream bench: {escape(str(results['model']))}</h1>",
        f'<p class="about">{escape(headline(results))}</p>',
        _warnings(results),
        "<h2>Summary</h2>",
        _table(summary(results)),
        _figures(results),
        "<h2>Tables</h2>",
        *(f"<h3>{escape(table.title)}</h3>{_table(table)}" for table in tables(results)),
        f'<p class="legend">{escape(LEGEND)}</p>',
        "<h2>Where these figures come from</h2>",
        _origin(results),
    ]
    head = (
        f'<meta charset="utf-8"><title>slipstream bench: {escape(str(results["model"]))}</title><style>{STYLE}</style>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def summary(results: Mapping[str, Any]) -> Table:
    """Every setup in a line: its speed-up in each load, and the range."""
    loads = list(dict.fromkeys(_load(record) for record in results["records"]))
    lines: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for record in results["records"]:
        depth = "-" if record["drafter"] == "none" else str(record["depth"])
        drafter = "plain" if record["drafter"] == "none" else str(record["drafter"])
        lines.setdefault((str(record["engine"]), drafter, str(record["rule"]), depth), {})[_load(record)] = record
    rows = [[*names, *(_short(found.get(load)) for load in loads)] for names, found in lines.items()]
    title = "tokens per second (times plain decoding of the same engine)"
    return Table(title, ["engine", "drafter", "rule", "depth", *loads], rows, 3)


def _load(record: Mapping[str, Any]) -> str:
    return f"{record['workload']}, batch {record['batch']}, T {record['temperature']:g}"


def _short(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "-"
    times = f" ({record['speedup']:.2f} times)" if record["speedup"] is not None and record["drafter"] != "none" else ""
    return f"{record['tokens_per_second']:.1f}{times}"


def _warnings(results: Mapping[str, Any]) -> str:
    found = [warning] if (warning := busy(results)) else []
    if results.get("scaled"):
        words = "Its answers are the small model's, its cost that of a large one."
        found.append(f"Cost-scaled target: {results['scaled']}. {words}")
    return "".join(f'<p class="warning">{escape(words)}</p>' for words in found)


def _table(table: Table) -> str:
    head = "".join(f'<th class="{_side(i, table)}">{escape(name)}</th>' for i, name in enumerate(table.columns))
    rows = "".join(
        "<tr>" + "".join(f'<td class="{_side(i, table)}">{escape(cell)}</td>' for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _side(i: int, table: Table) -> str:
    return "left" if i < table.left else "right"


def _figures(results: Mapping[str, Any]) -> str:
    pictures = draw(results)
    if not pictures:
        return f'<p class="about">{escape(NO_PLOTS)}</p>'
    return "\n".join(
        f'<figure><img alt="{escape(name)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
        f"<figcaption>{escape(CAPTIONS[name])}</figcaption></figure>"
        for name, svg in pictures.items()
    )


def _origin(results: Mapping[str, Any]) -> str:
    facts = {
        "command": results["command"],
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
    listed = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    return f"<dl>{listed}</dl>"
