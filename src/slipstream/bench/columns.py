"""The columns of the result tables: the text of each cell, and the meaning of each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.statistics import NOT_DRAFTED, ONE_REPEAT

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its title, and the text of its cell for a record."""

    title: str
    show: Callable[[Row], str]
    left: bool = False
    needed: bool = False  # shown on narrow terminals, too


def number(name: str, digits: int = 2, unit: str = "") -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else f"{value:.{digits}f}{unit}"

    return show


def interval(name: str, bounds: str, digits: int) -> Callable[[Row], str]:
    """A value with its interval, or the value alone if there is one repeat."""

    def show(row: Row) -> str:
        if row.get(name) is None:
            return "-"
        point = f"{row[name]:.{digits}f}"
        if row[bounds] is None:
            return point
        low, high = row[bounds]
        return f"{point} [{low:.{digits}f}, {high:.{digits}f}]"

    return show


def ratio(name: str) -> Callable[[Row], str]:
    """A ratio of speeds with its interval. If the interval contains 1, only the interval is shown, because the ratio
    would look like a gain or a loss."""

    def show(row: Row) -> str:
        if row.get(name) is None or (name != "ratio_to_reference" and row["verdict"] == NOT_DRAFTED):
            return "-"
        bounds = row[f"{name}_interval"]
        if bounds is None:
            return "no interval"
        return f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds[0] <= 1 <= bounds[1] else _with_interval(row, name)

    return show


def against_plain(row: Row) -> str:
    """The ratio to plain decoding and its verdict."""
    if row.get("ratio_to_plain") is None:
        return "-"
    if row["verdict"] in (ONE_REPEAT, NOT_DRAFTED):
        return str(row["verdict"])
    return f"{_with_interval(row, 'ratio_to_plain')} {row['verdict']}"


def _with_interval(row: Row, name: str) -> str:
    return interval(name, f"{name}_interval", 2)(row)


def percent(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        return "-" if row.get(name) is None else f"{100 * row[name]:.0f} %"

    return show


def _memory(row: Row) -> str:
    size = row.get("peak_memory_bytes")
    return "-" if size is None else f"{size / 1e9:.2f}"


def _joules(row: Row) -> str:
    shown = number("joules_per_token", 3)(row)
    return f"≈{shown}" if (row.get("energy_source") or "").startswith("estimate") else shown


def _acceptance(row: Row) -> str:
    return " ".join(f"{100 * share:.0f}" for share in row["acceptance"][:6]) or "-"


def _quality(row: Row) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in row["quality"].items()) or "-"


def _depth(row: Row) -> str:
    return "-" if row["drafter"] == "none" else str(row["depth"])


COLUMNS = (
    Column("engine", lambda row: str(row["engine"]), left=True, needed=True),
    Column("drafter", lambda row: str(row["drafter"]), left=True, needed=True),
    Column("rule", lambda row: str(row["rule"]), left=True, needed=True),
    Column("depth", _depth, needed=True),
    Column("tokens/s", interval("tokens_per_second", "tokens_per_second_interval", 1), needed=True),
    Column("whole calls/s", number("end_to_end_tokens_per_second", 1)),
    Column("against plain", against_plain, needed=True),
    Column("whole calls", ratio("ratio_to_plain_end_to_end")),
    Column("to reference", ratio("ratio_to_reference")),
    Column("first s", number("seconds_to_first_token")),
    Column("tau", number("tau"), needed=True),
    Column("accepted %", _acceptance),
    Column("draft alone/s", number("draft_tokens_per_second", 1), needed=True),
    Column("of limit", percent("share_of_limit"), needed=True),
    Column("same", percent("same_answers")),
    Column("quality", _quality),
    Column("GB", _memory),
    Column("J/token", _joules),
    Column("idle", percent("idle_share")),
)
MEANINGS = {
    "tokens/s": "after the first tokens, geometric mean over repeats [95 % interval]",
    "whole calls/s": "tokens per second, prompts included",
    "against plain": "ratio to plain decoding of the same engine, repeat by repeat; a gain only where all of its "
    "interval lies above 1",
    "whole calls": "the same ratio, prompts included; its interval alone where that holds 1",
    "to reference": "ratio to plain decoding of the first engine",
    "first s": "seconds to the first token",
    "tau": "tokens per cycle",
    "accepted %": "share of drafted tokens kept, by position",
    "draft alone/s": "the draft model's own plain speed",
    "of limit": "share of the speed that bytes read and measured bandwidth allow",
    "same": "answers equal to plain decoding's at temperature 0",
    "quality": "mean score of the answers that have a reference",
    "GB": "highest memory of the process",
    "J/token": "energy of the device for whole calls; ≈ marks an estimate by a stated power",
    "idle": "share of that energy which the idle device would have used",
}


def legend(records: Sequence[Row]) -> dict[str, str]:
    """The meanings of the columns that are shown."""
    return {
        column.title: MEANINGS[column.title]
        for column in COLUMNS
        if column.title in MEANINGS and has_values(column, records)
    }


def has_values(column: Column, records: Sequence[Row]) -> bool:
    """Whether a column has a value for any record."""
    if column.title == "to reference" and len({record["engine"] for record in records}) == 1:
        return False
    return any(column.show(record) != "-" for record in records)


def is_llamacpp_wheel(row: Row) -> bool:
    """Whether llama.cpp ran from the Python package's wheel, which is built for any processor of its family."""
    return row["engine"] == "llamacpp" and "native build" not in str(row["model"])
