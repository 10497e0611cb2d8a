"""The chart of README, from the files in `results/`.

    python benchmarks/images.py            # writes docs/images/*.svg, each for a light and a dark page

`drafting` shows the speed of the shipped head against plain decoding on three machines, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from slipstream.bench.statistics import Estimate, pooled

HERE = Path(__file__).parent
RESULTS, IMAGES = HERE / "results", HERE.parent / "docs" / "images"
WIDTH, NAMES, VALUES = 560, 190, 436  # of an image; where its drawing begins and where it ends
THEMES = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#d1d9e0",
        "native": "#1666c5",
    },
    "dark": {
        "paper": "#0d1117",
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "line": "#3d444d",
        "native": "#62a8ff",
    },
}
NAMED = {"eagle": "automatic depth", "auto": "automatic depth"}
HEADS = {
    "2 ARM cores (Neoverse-N1)": ("cpu-arm-2026-11-16.json.gz", ["eagle", "eagle 2", "eagle 3", "tree 4"]),
    "2 Xeon cores with AMX": ("cpu-amx-2026-11-16.json.gz", ["eagle", "eagle 2", "eagle 3"]),
    "H200": ("gpu-h200-2026-11-16-shares.json.gz", ["auto", "eagle 3", "eagle 5", "tree 15"]),
}
RATIOS = (0.6, 2.0)  # the axis of `drafting`


class Row(NamedTuple):
    name: str
    draw: Callable[[float, dict[str, str]], str]  # from the height of its middle and the theme's colours
    value: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, text in images().items():
        (out / name).write_text(text, encoding="utf-8")


def images() -> dict[str, str]:
    """Every image by the name of its file."""
    return {f"drafting-{theme}.svg": drafting(colours) for theme, colours in THEMES.items()}


def drafting(colours: dict[str, str]) -> str:
    panels = {machine: [ratio_row(way, ratio) for way, ratio in heads(*where)] for machine, where in HEADS.items()}
    ticks = [(across(value), f"{value:g}") for value in (0.75, 1.0, 1.25, 1.5, 2.0)]
    about = (
        "SmolLM2-135M with its shipped head, greedy, one request.",
        "Lines are 95 % intervals; hollow: no clear difference.",
    )
    return chart("Speed of drafting against plain decoding", about, panels, ticks, colours, across(1.0))


def heads(file: str, ways: Sequence[str]) -> list[tuple[str, Estimate]]:
    """The ratio of every way to plain decoding, pooled over workloads where a file holds several."""
    content = (RESULTS / file).read_bytes()
    data = json.loads(gzip.decompress(content) if file.endswith(".gz") else content)
    if "engines" in data:  # of a GPU: repeats in which something was captured are no measure of decoding
        cell = data["engines"]["batch 1, T 0.0"]
        rows = []
        for way in ways:
            captures = cell[way].get("captures", [0] * len(cell[way]["repeats"]))
            kept = [n for n, count in enumerate(captures) if not count]
            ours, theirs = ([cell[name]["repeats"][n] for n in kept] for name in (way, "plain"))
            rows.append((way, pooled([(ours, theirs)])))
        return rows
    cells = data["tokens_per_second"].values()
    return [(way, pooled([(cell[way], cell["plain"]) for cell in cells])) for way in ways]


def ratio_row(way: str, ratio: Estimate) -> Row:
    assert ratio.interval is not None, "every file holds two repeats or more"
    low, high = ratio.interval

    def draw(y: float, colours: dict[str, str]) -> str:
        ends = [min(max(across(bound), NAMES), VALUES) for bound in (low, high)]
        path = f"M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}" + "".join(f"M{x:.1f} {y - 6:.1f}v12" for x in ends)
        fill = colours["paper"] if low <= 1 <= high else colours["native"]
        dot = f'<circle cx="{across(ratio.value):.1f}" cy="{y:.1f}" r="6" fill="{fill}" stroke="{colours["native"]}"'
        return f'<path d="{path}" stroke="{colours["native"]}" stroke-width="2"/>{dot} stroke-width="2"/>'

    value = f"{low:.2f} to {high:.2f}" if low <= 1 <= high else f"{ratio.value:.2f} times"
    return Row(NAMED.get(way, way.replace("eagle", "depth").replace("tree", "tree of")), draw, value)


def across(ratio: float) -> float:
    low, high = map(math.log, RATIOS)
    return NAMES + (VALUES - NAMES) * (math.log(ratio) - low) / (high - low)


def chart(
    title: str,
    about: Sequence[str],
    panels: dict[str, list[Row]],
    ticks: Sequence[tuple[float, str]],
    colours: dict[str, str],
    one: float,
) -> str:
    """Rows in panels below each other over one axis, with a line at `one`."""
    parts = [text(0, 22, title, colours["ink"], 21, "600")]
    parts += [text(0, 48 + 20 * n, line, colours["soft"], 15) for n, line in enumerate(about)]
    y = 48.0 + 20 * len(about)
    start = y
    for machine, rows in panels.items():
        y += 30
        parts.append(text(0, y, machine, colours["ink"], 17, "600"))
        for row in rows:
            y += 28
            parts += [text(0, y + 5, row.name, colours["soft"], 16), row.draw(y, colours)]
            parts.append(text(VALUES + 12, y + 5, row.value, colours["ink"], 16))
        y += 10
    line = f'<path d="M{one:.1f} {start + 12:.1f}V{y + 8:.1f}" stroke="{colours["soft"]}" stroke-dasharray="4 3"/>'
    parts.insert(0, line)
    parts += [text(x, y + 26, name, colours["soft"], 15, anchor="middle") for x, name in ticks]
    parts.append(f'<path d="M{NAMES} {y + 8:.1f}H{VALUES}" stroke="{colours["line"]}"/>')
    height = round(y + 36)
    said = "; ".join(
        f"{machine}: " + ", ".join(f"{row.name} {row.value}" for row in rows) for machine, rows in panels.items()
    )
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    fonts = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}" role="img">'
    return f"{head}<title>{title}</title><desc>{said}</desc>{''.join(parts)}</svg>\n"


def text(x: float, y: float, words: str, colour: str, size: int, weight: str = "400", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{words}</text>'


if __name__ == "__main__":
    main()
