"""Names and groups of records in the report, and the colour of each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

Record = Mapping[str, Any]
Results = Mapping[str, Any]
COLOURS = 6  # --engine-0 to --engine-5 in style.css


def is_plain(record: Record) -> bool:
    return bool(record["drafter"] == "none")


def load_of(record: Record) -> tuple[Any, ...]:
    return record["workload"], record["batch"], record["temperature"]


def drafter_name(record: Record) -> str:
    """The drafter's own name without the folders of a path."""
    return "plain" if is_plain(record) else str(record["drafter"]).rstrip("/").rpartition("/")[2]


def drafting(record: Record) -> str:
    """Drafter, depth and rule: the name of a setup within its engine."""
    if is_plain(record):
        return "plain"
    depth = "automatic depth" if record["depth"] == "auto" else f"depth {record['depth']}"
    rule = "" if record["rule"] in ("greedy", "own") else f", {record['rule']}"
    return f"{drafter_name(record)}, {depth}{rule}"


def line_of(record: Record) -> tuple[Any, ...]:
    """The key of a chart's line: setups that differ only in depth."""
    return record["engine"], record["drafter"], record["rule"]


def setup_of(record: Record) -> tuple[Any, ...]:
    """The key of a setup over all loads, without the rule if that is greedy."""
    rule = None if record["rule"] in ("greedy", "plain") else record["rule"]
    return record["engine"], record["drafter"], record["depth"], rule


def grouped(records: Sequence[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def engines_of(results: Results) -> list[str]:
    """The engines in the order of the command line."""
    return list(dict.fromkeys(record["engine"] for record in results["records"]))


def marked(records: Sequence[Record]) -> dict[tuple[Any, ...], int]:
    """The number of each line within its engine, for its marker and dashes. Plain decoding has 0."""
    numbers = {line_of(record): 0 for record in records if is_plain(record)}
    for line in (line_of(record) for record in records):
        numbers.setdefault(line, sum(engine == line[0] for engine, *_ in numbers))
    return numbers


class Palette:
    """One colour per engine, the same in every chart and table of a page."""

    def __init__(self, results: Results) -> None:
        self._numbers = {name: number for number, name in enumerate(engines_of(results))}

    def colour(self, engine: str) -> str:
        return f"var(--engine-{self._numbers[engine] % COLOURS})"

    def key(self, engine: str) -> str:
        """A dot in the engine's colour and its name."""
        return f'<span class="key" style="--c: {self.colour(engine)}">{escape(engine)}</span>'
