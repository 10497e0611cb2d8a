"""`generate --compare`: compares the speed and the tokens of speculation with those of plain decoding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from slipstream.cli.generate.pairs import (
    MIN_PAIRS,
    OnPair,
    Pairs,
    measure_pairs,
    not_measured,
    ratio_report,
    speed_of,
    why_not_measured,
)
from slipstream.cli.generation import GenerationTask, Run, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.engines.agreement import Agreement, Divergence
    from slipstream.engines.base import Engine
    from slipstream.models.text.codec import TextCodec


def compare(engine: Engine, task: GenerationTask, run: Run, on_pair: OnPair) -> dict[str, Any]:
    """Compare within one engine that can turn speculation off per request. `run` was shown to the user."""
    plain = _uninterrupted(run_task(engine, task.plain()))
    if note := why_not_measured(run):
        speed = not_measured(note)
    else:
        pairs = measure_pairs(lambda: run_task(engine, task), lambda: run_task(engine, task.plain()), on_pair)
        speed = ratio_report(pairs)
    draft = engine.draft_speed(run.samples[0])
    draft_speed = {"draft_tokens_per_second": round(draft, 2)} if draft else {}
    agreements = engine.agreements(task.prompt, task.sampling, task.options, run.samples, plain.samples)
    if agreements is None:
        return speed | {"identical": _equal(task, run, plain)} | draft_speed
    return speed | _agreement_report(agreements, engine.text) | draft_speed


def compare_apart(
    engine: Engine, open_plain: Callable[[], Engine], task: GenerationTask, run: Run, on_pair: OnPair
) -> dict[str, Any]:
    """Compare with a second engine, because this one cannot turn speculation off per request.

    It is closed before the plain engine is opened, because each may need the whole machine. So the runs are not
    interleaved."""
    note = why_not_measured(run)
    pairs = Pairs(fast=[] if note else _speeds(engine, task, on_pair))
    engine.close()
    with open_plain() as other:
        plain = _uninterrupted(run_task(other, task))
        pairs.plain = [] if note else _speeds(other, task, on_pair)
    speed = not_measured(note) if note else ratio_report(pairs)
    turns = {} if note else {"note": f"{speed['note']}; the two did not take turns, as this engine drafts for all"}
    return speed | turns | {"identical": _equal(task, run, plain)}


def _speeds(engine: Engine, task: GenerationTask, on_pair: OnPair) -> list[float]:
    speeds = []
    for done in range(MIN_PAIRS):
        on_pair(done, MIN_PAIRS)
        speeds.append(speed_of(run_task(engine, task)))
    return speeds


def _uninterrupted(run: Run) -> Run:
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _equal(task: GenerationTask, run: Run, plain: Run) -> bool | None:
    """Whether the tokens are the same at temperature 0; None if they are sampled."""
    if task.sampling.temperature > 0:
        return None
    return [sample.token_ids for sample in run.samples] == [sample.token_ids for sample in plain.samples]


def _agreement_report(agreements: Sequence[Agreement], text: TextCodec) -> dict[str, Any]:
    """Whether the tokens are the same, and for each difference whether it is a tie or a real difference."""
    return {
        "identical": all(result.identical for result in agreements),
        "flipped_ties": sum(result.ties for result in agreements),
        "real_difference": any(result.real is not None for result in agreements),
        "differences": [
            _divergence_report(divergence, text) for result in agreements for divergence in result.divergences
        ],
    }


def _divergence_report(divergence: Divergence, text: TextCodec) -> dict[str, Any]:
    return {
        "position": divergence.position,
        "tokens": [text.decode([token]) for token in divergence.tokens],
        "gap": _finite(divergence.gap),
        "numerics": _finite(divergence.numerics),
        "tie": divergence.tie,
    }


def _finite(value: float) -> float | None:
    """None for infinity, which JSON does not have: a token that was truncated (top-k, top-p, min-p) has no distance."""
    return value if math.isfinite(value) else None
