"""Turns measurements into records: one per engine, drafter, depth, rule, batch, temperature and workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.matrix import Cell
from slipstream.bench.measure.measurement import Measurement
from slipstream.bench.measure.roofline import Machine, Weights, bytes_per_token, intensity
from slipstream.bench.quality.scores import judge
from slipstream.bench.statistics import Estimate, estimate, median, ratio, verdict
from slipstream.bench.workloads import Workload
from slipstream.engines.base import SpeculationStats

Record = dict[str, Any]


@dataclass(frozen=True)
class RecordContext:
    """Data for records that is not in their measurements."""

    machine: Machine
    targets: Mapping[Cell, Weights]  # as the cell's engine stores them
    drafts: Mapping[Cell, Weights] = field(default_factory=dict)  # of draft models whose size is known
    draft_speeds: Mapping[Cell, float] = field(default_factory=dict)  # tokens per second of the draft model alone
    reference: str = "native"  # the engine whose plain decoding all cells are compared with
    labels: Mapping[Cell, str] = field(default_factory=dict)  # the engine's own label of the model


def records(
    measured: Mapping[Cell, Sequence[Measurement]], workloads: Mapping[str, Workload], context: RecordContext
) -> list[Record]:
    """One record per cell. Ratios are computed per repeat, so every cell must have all its repeats."""
    return [_record(cell, runs, measured, workloads[cell.workload], context) for cell, runs in measured.items()]


def _record(
    cell: Cell,
    runs: Sequence[Measurement],
    measured: Mapping[Cell, Sequence[Measurement]],
    workload: Workload,
    context: RecordContext,
) -> Record:
    plain = _plain(cell, measured, cell.setup.engine)
    reference = _plain(cell, measured, context.reference)
    speeds = [run.speed for run in runs]
    speed, whole = estimate(speeds), estimate([run.whole_speed for run in runs])
    quality = judge(workload.items, runs[0].answers)
    return {
        **cell.key(),
        "lossless": cell.setup.lossless,
        "model": context.labels.get(cell),
        "tokens_per_second": speed.value,
        "tokens_per_second_interval": speed.bounds,
        "tokens_per_second_repeats": speeds,
        "end_to_end_tokens_per_second": whole.value,
        "end_to_end_interval": whole.bounds,
        "seconds_to_first_token": median([second for run in runs for second in run.first]),
        **_drafting(runs),
        **_ratios(cell, runs, plain),
        **_estimated("ratio_to_reference", _ratio(runs, reference)),
        "same_answers": _same(cell, runs, plain),
        **_limits(cell, runs, context),
        **_energy(runs),
        "draft_tokens_per_second": context.draft_speeds.get(cell),
        "quality": quality.scores,
        "quality_counts": quality.counts,
        "peak_memory_bytes": max((run.memory for run in runs if run.memory is not None), default=None),
        "repeats": len(runs),
        "tokens": sum(run.tokens for run in runs),
        "prompts": len(workload.items),
        "workload_digest": workload.digest,
    }


def _plain(cell: Cell, measured: Mapping[Cell, Sequence[Measurement]], engine: str) -> Sequence[Measurement] | None:
    """Plain decoding of an engine under the same load."""
    return next(
        (runs for c, runs in measured.items() if c.setup.plain and c.setup.engine == engine and c.load == cell.load),
        None,
    )


def _ratios(cell: Cell, runs: Sequence[Measurement], plain: Sequence[Measurement] | None) -> Record:
    """Ratios to plain decoding of the same engine, without and with prefill, and the verdict on the first."""
    decoding = None if cell.setup.plain else _ratio(runs, plain)
    end_to_end = None if cell.setup.plain else _ratio(runs, plain, end_to_end=True)
    proposed = any(sum(run.tally.drafted) or run.tally.tau > 1 for run in runs)
    return {
        **_estimated("ratio_to_plain", decoding),
        **_estimated("ratio_to_plain_end_to_end", end_to_end),
        "verdict": verdict(decoding, proposed) if decoding else None,
    }


def _ratio(
    runs: Sequence[Measurement], base: Sequence[Measurement] | None, end_to_end: bool = False
) -> Estimate | None:
    """The ratio of speeds per repeat; None if there is no base, or if both are the same measurements."""
    if base is None or base is runs:
        return None
    speeds, base_speeds = (
        [run.whole_speed if end_to_end else run.speed for run in measurements] for measurements in (runs, base)
    )
    return ratio(speeds, base_speeds) if all(base_speeds) else None


def _estimated(name: str, value: Estimate | None) -> Record:
    return {name: value.value if value else None, f"{name}_interval": value.bounds if value else None}


def _drafting(runs: Sequence[Measurement]) -> Record:
    """Counts over all repeats. `survival`: the share of cycles that accepted each position; 1 plus its sum is tau."""
    tally = SpeculationStats()
    for run in runs:
        tally.merge(run.tally)
    cycles = max(1, tally.cycles)
    return {
        "tau": tally.tau,
        "acceptance": tally.acceptance,
        "survival": [kept / cycles for kept in tally.accepted],
        "drafted": sum(tally.drafted),
        "accepted": sum(tally.accepted),
        "seconds_per_pass": median([run.decoding / max(1, run.passes) for run in runs]),
    }


def _same(cell: Cell, runs: Sequence[Measurement], plain: Sequence[Measurement] | None) -> float | None:
    """At temperature 0, the share of answers that equal plain decoding's of the same engine, token by token."""
    if plain is None or cell.temperature != 0:
        return None
    pairs = list(zip(runs[0].prints, plain[0].prints, strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


def _limits(cell: Cell, runs: Sequence[Measurement], context: RecordContext) -> Record:
    target, draft = context.targets[cell], context.drafts.get(cell)
    needed = median([bytes_per_token(run, target, draft) for run in runs])
    limit = context.machine.bandwidth / needed
    points = [intensity(run, target) for run in runs]
    return {
        "bytes_per_token": needed,
        "limit_tokens_per_second": limit,
        "share_of_limit": median([run.speed for run in runs]) / limit,
        "operations_per_byte": median([x for x, _ in points]),
        "operations_per_second": median([y for _, y in points]),
    }


def _energy(runs: Sequence[Measurement]) -> Record:
    """Energy of whole calls, prompts included. Repeats that were too short for the counter are left out."""
    metered = [run for run in runs if run.joules and run.tokens]
    idle = [run.idle / run.joules for run in metered if run.joules and run.idle is not None]
    return {
        "joules_per_token": median([(run.joules or 0.0) / run.tokens for run in metered]) if metered else None,
        "idle_share": median(idle) if idle else None,
        "energy_source": metered[0].energy_source if metered else None,
        "energy_missing": None if metered else next((run.energy_missing for run in runs if run.energy_missing), None),
    }
