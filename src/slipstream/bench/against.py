"""Compares two results: which cells are faster, slower, or not distinguishable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.statistics import FASTER, ONE_REPEAT, SLOWER, UNCLEAR
from slipstream.models.sources.folder import read_json

AXES = ("engine", "drafter", "depth", "rule", "batch", "temperature", "workload")
SAME = ("model", "sha256")


def read_results(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data.get("records"), list):
        raise ValueError(f"{path} holds no results of slipstream bench; give the results.json of a run")
    return data


def compare(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the cells that both results have, on the same prompts.

    A cell is called faster or slower only if the two intervals do not overlap. `differs` names other changes, such as
    the machine."""
    old = {axes(record): record for record in before["records"]}
    pairs = [(record, old[axes(record)]) for record in now["records"] if axes(record) in old]
    usable = [(a, b) for a, b in pairs if a["workload_digest"] == b["workload_digest"]]
    return {
        "commit": before.get("commit"),
        "date": before.get("date"),
        "differs": _differs(now, before),
        "records": [_compared(a, b) for a, b in usable],
        "other_prompts": len(pairs) - len(usable),
        "only_now": len(now["records"]) - len(pairs),
        "only_before": len(before["records"]) - len(pairs),
    }


def axes(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in AXES)


def _differs(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Changes other than the code, which make the speeds incomparable."""
    different = [name for name in SAME if now.get(name) != before.get(name)]
    if now.get("hardware") != before.get("hardware"):
        different.append("hardware")
    for name in ("max_tokens", "dtype"):
        if now["settings"].get(name) != before.get("settings", {}).get(name):
            different.append(name)
    return different


def _compared(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: now[name] for name in AXES},
        "before": before["tokens_per_second"],
        "now": now["tokens_per_second"],
        "ratio": now["tokens_per_second"] / before["tokens_per_second"],
        "tau_before": before["tau"],
        "tau_now": now["tau"],
        "verdict": _verdict(now["tokens_per_second_interval"], before["tokens_per_second_interval"]),
    }


def _verdict(now: list[float] | None, before: list[float] | None) -> str:
    if now is None or before is None:
        return ONE_REPEAT
    return FASTER if now[0] > before[1] else SLOWER if now[1] < before[0] else UNCLEAR
