"""Measures the energy of a profile: the power of decoding by drafter and batch, and joules per token by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.bench.measure.energy import Meter, stated_watts
from slipstream.bench.measure.measurement import Load
from slipstream.bench.measure.phase_energy import PhaseLoad
from slipstream.bench.measure.phases import energy_by_phase
from slipstream.bench.measure.token_energy import token_energy
from slipstream.bench.workloads import Item
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.energy_sources import stated_power
from slipstream.models.target import Target
from slipstream.plan.profile.energy import DecodingPower, ProfileEnergy
from slipstream.plan.profile.runs import PLAIN

SECONDS = 2.1  # of each window


def measure_energy(
    target: Target,
    drafters: Mapping[str, Mapping[str, Any]],
    depth: int,
    batches: Sequence[int],
    items: Sequence[Item],
    on_step: Callable[[str], None] = lambda what: None,
    seconds: float = SECONDS,
) -> ProfileEnergy:
    """Greedy decoding at one depth. Phases are measured at the first batch. Nothing runs without a counter."""
    meter, reason = Meter.open(target.model.device.type)
    if meter is None:
        return ProfileEnergy(missing=reason)
    powers, phases = list[DecodingPower](), list[dict[str, Any]]()
    for name, options in {PLAIN: {}, **drafters}.items():
        for batch in batches:
            on_step(f"energy of {name}, batch {batch}")
            powers.append(decoding_power(target, name, options, depth, batch, items, seconds))
        if name != PLAIN:
            on_step(f"energy of {name} by phase")
            load = PhaseLoad(name, depth, batches[0], options=options, seconds=seconds)
            found = energy_by_phase(target, load, items)
            phases.append({"drafter": name, "missing": found} if isinstance(found, str) else found.to_json())
    return ProfileEnergy(powers, phases, None)


def decoding_power(
    target: Target,
    drafter: str,
    options: Mapping[str, Any],
    depth: int,
    batch: int,
    items: Sequence[Item],
    seconds: float = SECONDS,
) -> DecodingPower:
    """The mean power of greedy decoding, from a counter or as stated. There must be one of them."""
    if (watts := stated_watts()) is not None:
        return DecodingPower(drafter, batch, watts, stated_power(watts).name, estimate=True)
    speculation = Speculation() if drafter == PLAIN else Speculation(depth=depth)
    limits = Limits(rows=max(16, batch), retained=0)
    with NativeEngine(target, drafter, options=dict(options), limits=limits, profile="none") as engine:
        found = token_energy(engine, items, Load(batch, 0.0, 64, speculation), seconds)
    assert found.watts is not None, "the caller has seen that there is a meter"
    assert found.source is not None, "a figure has a source"
    return DecodingPower(drafter, batch, found.watts, found.source, found.estimate)
