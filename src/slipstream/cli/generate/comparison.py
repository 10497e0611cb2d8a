"""`generate --compare`: speculation against plain decoding: how fast, and whether the tokens are the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from slipstream.cli.generate.pairs import (
    LEAST,
    Pairs,
    Told,
    described,
    measure_pairs,
    not_measured,
    speed_of,
    why_not_measured,
)
from slipstream.cli.generation import GenerationTask, Run, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.engines.agreement import Agreement, Divergence
    from slipstream.engines.base import Engine
    from slipstream.models.text.codec import TextCodec


def compare(engine: Engine, task: GenerationTask, run: Run, told: Told) -> dict[str, Any]:
    """Compare within one engine, which can leave speculation off for a request. `run` was shown to the user."""
    plain = _whole(run_task(engine, task.plain()))
    if note := why_not_measured(run):
        speed = not_measured(note)
    else:
        speed = described(measure_pairs(lambda: run_task(engine, task), lambda: run_task(engine, task.plain()), told))
    draft = engine.draft_speed(run.samples[0])
    alone = {"draft_tokens_per_second": round(draft, 2)} if draft else {}
    agreements = engine.agreements(task.prompt, task.sampling, task.options, run.samples, plain.samples)
    if agreements is None:
        return speed | {"identical": _equal(task, run, plain)} | alone
    return speed | _judged(agreements, engine.text) | alone


def compare_apart(
    engine: Engine, open_plain: Callable[[], Engine], task: GenerationTask, run: Run, told: Told
) -> dict[str, Any]:
    """Compare where an engine drafts alike for all requests. It is closed before the plain one is opened, since either
    may take the whole machine, so that the two cannot take turns."""
    note = why_not_measured(run)
    pairs = Pairs(fast=[] if note else _speeds(engine, task, told))
    engine.close()
    with open_plain() as other:
        plain = _whole(run_task(other, task))
        pairs.plain = [] if note else _speeds(other, task, told)
    speed = not_measured(note) if note else described(pairs)
    turns = {} if note else {"note": f"{speed['note']}; the two did not take turns, as this engine drafts for all"}
    return speed | turns | {"identical": _equal(task, run, plain)}


def _speeds(engine: Engine, task: GenerationTask, told: Told) -> list[float]:
    speeds = []
    for done in range(LEAST):
        told(done, LEAST)
        speeds.append(speed_of(run_task(engine, task)))
    return speeds


def _whole(run: Run) -> Run:
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _equal(task: GenerationTask, run: Run, plain: Run) -> bool | None:
    """Whether the tokens are the same, where plain decoding must give them; a difference is not judged."""
    if task.sampling.temperature > 0:
        return None
    return [sample.token_ids for sample in run.samples] == [sample.token_ids for sample in plain.samples]


def _judged(agreements: Sequence[Agreement], text: TextCodec) -> dict[str, Any]:
    """Whether the tokens agree; where they do not, whether a tie flipped or something is wrong."""
    return {
        "identical": all(result.identical for result in agreements),
        "flipped_ties": sum(result.ties for result in agreements),
        "real_difference": any(result.real is not None for result in agreements),
        "differences": [_place(divergence, text) for result in agreements for divergence in result.divergences],
    }


def _place(divergence: Divergence, text: TextCodec) -> dict[str, Any]:
    return {
        "position": divergence.position,
        "tokens": [text.decode([token]) for token in divergence.tokens],
        "gap": _finite(divergence.gap),
        "numerics": _finite(divergence.numerics),
        "tie": divergence.tie,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: a token that is cut off (top-k, top-p, min-p) has no distance."""
    return value if math.isfinite(value) else None
