"""Joules per token of an engine: its prompts are decoded again and again until the counter can tell the energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.bench.measure.energy import Meter
from slipstream.bench.measure.measurement import Load, Measurement, add_run, device_of, warm
from slipstream.bench.workloads import Item
from slipstream.engines.base import Engine

SECONDS = 2.5  # of a window, at least


@dataclass(frozen=True)
class TokenEnergy:
    """Energy and speed of whole calls, prompts included. `joules_per_token` is None where `missing` says why."""

    joules_per_token: float | None
    watts: float | None = None
    seconds_per_token: float | None = None
    tau: float | None = None
    source: str | None = None
    estimate: bool = False
    missing: str | None = None


def token_energy(
    engine: Engine,
    items: Sequence[Item],
    load: Load,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> TokenEnergy:
    """Decode the prompts for so many seconds or longer. Nothing runs where there is no counter and no stated power."""
    device = device_of(engine)
    meter, reason = Meter.open(device)
    if meter is None:
        return TokenEnergy(None, missing=reason)
    warm(engine, items, load)
    if device == "cuda":
        add_run(engine, items, load, Measurement())  # captures all sizes that such a run needs
    return metered(meter, engine, items, load, max(seconds, 1.05 * meter.source.min_window), clock)


def metered(
    meter: Meter, engine: Engine, items: Sequence[Item], load: Load, seconds: float, clock: Callable[[], float]
) -> TokenEnergy:
    """As `token_energy`, with an open meter and a warm engine."""
    total = Measurement()
    with meter.window() as window:
        began = clock()
        while clock() - began < seconds or not total.tokens:
            add_run(engine, items, load, total)
    source = meter.source
    return TokenEnergy(
        window.joules / total.tokens, window.watts, window.seconds / total.tokens, total.tally.tau, source.name,
        source.estimate,
    )  # fmt: skip
