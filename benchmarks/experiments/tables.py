"""Writes the tables of the experiments into a page, from the summary of `run.py`.

    python benchmarks/experiments/tables.py DIR [--page docs/experiments.md]

The page has a pair of comments `<!-- table N -->` and `<!-- end -->` for each experiment. What is between them is
replaced. Without `--page` the tables are printed.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

COLUMNS: dict[str, dict[str, tuple[str, int, float]]] = {  # by experiment: figure -> heading, digits, factor
    "1": {
        "head_parameters": ("parameters of the head", 0, 1),
        "weights_read": ("weights read for a drafted token", 0, 1),
        "draft_loss_1": ("loss, first drafted token", 3, 1),
        "draft_loss_mean": ("loss, mean of all depths", 3, 1),
        "tau_greedy": ("tau, greedy", 3, 1),
        "tau_sampled": ("tau, T = 1", 3, 1),
        "speed_cycle_seconds": ("ms of a cycle", 2, 1000),
        "speed_tokens_per_second": ("tokens/s, greedy", 0, 1),
        "speed_tokens_per_second_sampled": ("tokens/s, T = 1", 0, 1),
        "speed_plain_tokens_per_second": ("tokens/s, plain", 0, 1),
    },
    "2": {
        "text_loss": ("loss of the main model", 4, 1),
        "tau_greedy": ("tau, greedy", 3, 1),
        "tau_sampled": ("tau, T = 1", 3, 1),
        "head_parameters": ("parameters of the heads", 0, 1),
        "step_seconds": ("ms of a training step", 1, 1000),
    },
    "3": {
        "text_loss": ("loss of the main model", 4, 1),
        "tau_greedy": ("tau, greedy", 3, 1),
        "tau_sampled": ("tau, T = 1", 3, 1),
        "tau_greedy_off": ("tau without recycling in drafts, greedy", 3, 1),
        "tau_sampled_off": ("the same, T = 1", 3, 1),
        "weights_read": ("weights read for a drafted token", 0, 1),
        "step_seconds": ("ms of a training step", 1, 1000),
    },
    "4": {
        "parameters": ("parameters", 0, 1),
        "text_loss": ("loss", 3, 1),
        "speed_tau": ("tau, greedy", 2, 1),
        "speed_tau_sampled": ("tau, T = 1", 2, 1),
        "speed_cycle_seconds": ("ms of a cycle", 2, 1000),
        "speed_tokens_per_second": ("tokens/s, greedy", 0, 1),
        "speed_tokens_per_second_sampled": ("tokens/s, T = 1", 0, 1),
        "speed_plain_tokens_per_second": ("tokens/s, plain", 0, 1),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    summary = json.loads((args.out / "summary.json").read_text())
    tables = {number: table(number, variants) for number, variants in summary.items()}
    if args.page is None:
        print("\n\n".join(tables.values()))
        return
    page = args.page.read_text(encoding="utf-8")
    for number, text in tables.items():
        page = filled(page, number, text)
    args.page.write_text(page, encoding="utf-8")


def filled(page: str, number: str, text: str) -> str:
    """The page with another table of one experiment."""
    place = re.compile(rf"(<!-- table {number} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not place.search(page):
        raise SystemExit(f"the page has no place for table {number}")
    return place.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page, count=1)


def table(number: str, variants: dict[str, Any]) -> str:
    """Rows are figures, columns are variants and the differences to the first one."""
    others = [name for name in variants if variants[name]["effect"]]
    first = [name for name in variants if name not in others]
    seeds = min(variant["seeds"] for variant in variants.values())
    head = ["", *first, *others, *(f"{name}: difference" for name in others)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" + "--:|" * (len(head) - 1)]
    for figure, (title, digits, factor) in COLUMNS[number].items():
        values = [variants[name]["figures"].get(figure) for name in (*first, *others)]
        values += [variants[name]["effect"].get(figure) for name in others]
        if any(value is not None for value in values):
            cells = [shown(value, digits, factor, n >= len(first + others)) for n, value in enumerate(values)]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{seeds} seeds; ± is half of the 95 % interval."])


def shown(value: list[Any] | None, digits: int, factor: float, signed: bool) -> str:
    if value is None:
        return "-"
    mean, half = value[0] * factor, value[1]
    text = f"{mean:{'+' if signed else ''},.{digits}f}"
    return text if not half else f"{text} ± {half * factor:,.{digits}f}"


if __name__ == "__main__":
    main()
