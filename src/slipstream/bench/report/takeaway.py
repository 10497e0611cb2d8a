"""The result of a benchmark in one sentence. It claims a difference only if an interval lies on one side of 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.bench.columns import is_llamacpp_wheel
from slipstream.bench.report.labels import (
    Record,
    Results,
    drafting,
    grouped,
    is_plain,
    load_of,
    setup_of,
)
from slipstream.bench.statistics import FASTER, NOT_DRAFTED, SLOWER, SLOWER_NOT_DRAFTED, Estimate, Pair, pooled, verdict


class Pooled(NamedTuple):
    """The ratio of a setup to plain decoding of its engine, pooled over its loads."""

    name: str
    loads: str
    ratio: Estimate
    verdict: str


def takeaway(results: Results) -> str:
    """The heading of the report."""
    records = [record for record in results["records"] if all(record["tokens_per_second_repeats"])]
    if not records:
        return "No tokens were generated, so there is no speed to compare."
    first = records[0]["engine"]
    plain = [record for record in records if is_plain(record) and record["engine"] == first]
    place = f"{_speed(plain)} tokens per second on {machine(results)}"
    if max(record["repeats"] for record in records) == 1:
        return f"Plain decoding of {first} runs at {place}; one repeat has no interval, so no ratio is claimed."
    drafting_clause = _drafting(first, pooled_setups([record for record in records if record["engine"] == first]))
    rival = _rival(records, first)
    base = f"{first} decodes plainly at {place}{rival}"
    sentence = f"{drafting_clause}; {base}." if drafting_clause else f"{base}."
    return f"{sentence[0].upper()}{sentence[1:]}"


def _drafting(engine: str, setups: Sequence[Pooled]) -> str:
    """A clause on the effect of drafting in the first engine; empty if no drafter was measured."""
    if not setups:
        return ""
    gains = [setup for setup in setups if setup.verdict == FASTER]
    if gains:
        best = max(gains, key=lambda setup: setup.ratio.value)
        times = f"{best.ratio.value:.2f} times as fast as plain decoding"
        return f"{engine} with {best.name} decodes {best.loads} {times} ({_span(best.ratio)})"
    if all(setup.verdict in (NOT_DRAFTED, SLOWER_NOT_DRAFTED) for setup in setups):
        return NOT_DRAFTED
    if len(setups) > 1:
        return f"no drafter makes {engine} measurably faster"
    return f"drafting with {setups[0].name} does not make {engine} measurably faster ({_span(setups[0].ratio)})"


def _rival(records: Sequence[Record], first: str) -> str:
    """A clause that compares plain decoding of the first and the fastest other engine; empty if there is no other."""
    groups = grouped(list(filter(is_plain, records)), lambda record: record["engine"])
    plain = {engine: {load_of(record): record for record in group} for engine, group in groups.items()}
    own = plain.pop(first)
    ratios = {engine: pooled([_pair(own[load], loads[load]) for load in loads]) for engine, loads in plain.items()}
    if not ratios:
        return ""
    name, ratio = min(ratios.items(), key=lambda item: item[1].value)
    if name == "llamacpp":  # a llama.cpp that is built for the machine is faster than the wheel
        wheel = any(is_llamacpp_wheel(record) for record in plain[name].values())
        name = "the llamacpp wheel" if wheel else "llamacpp built for the machine"
    clauses = {FASTER: f"{ratio.value:.2f} times as fast as {name}", SLOWER: f"slower than {name}"}
    return f", {clauses.get(verdict(ratio), f'not measurably faster than {name}')} ({_span(ratio)})"


def pooled_setups(records: Sequence[Record]) -> list[Pooled]:
    """Every drafting setup of one engine, pooled over its loads."""
    plain = {load_of(record): record for record in records if is_plain(record)}
    setups = grouped([record for record in records if not is_plain(record)], setup_of)
    return [_pool(group, [plain[load_of(record)] for record in group]) for group in setups.values()]


def _pool(group: Sequence[Record], plain: Sequence[Record]) -> Pooled:
    ratio = pooled([_pair(record, base) for record, base in zip(group, plain, strict=True)])
    drafted = any(record["drafted"] or record["tau"] > 1 for record in group)
    loads = str(group[0]["workload"]) if len(group) == 1 else f"{len(group)} loads"
    return Pooled(_name(group[0]), loads, ratio, verdict(ratio, drafted))


def _name(record: Record) -> str:
    drafter, _, details = drafting(record).partition(", ")
    return f"{drafter} ({details})"


def _pair(record: Record, base: Record) -> Pair:
    return record["tokens_per_second_repeats"], base["tokens_per_second_repeats"]


def machine(results: Results) -> str:
    hardware = results["hardware"]
    if hardware["accelerator"]:
        return str(hardware["accelerator"])
    threads = "one thread" if hardware["threads"] == 1 else f"{hardware['threads']} threads"
    return f"{hardware['processor']} ({threads})"


def _speed(records: Sequence[Record]) -> str:
    mean = math.exp(sum(math.log(record["tokens_per_second"]) for record in records) / len(records))
    return f"{mean:,.0f}" if mean >= 20 else f"{mean:.1f}"


def _span(ratio: Estimate) -> str:
    assert ratio.interval is not None, "ratios of one repeat are not reported"
    low, high = ratio.interval
    return f"95 % interval {low:.2f} to {high:.2f}"
