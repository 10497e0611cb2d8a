"""Joules per token by phase on any device."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.bench.measure.energy import gauge
from slipstream.bench.measure.phase_energy import EnergyByPhase, PhaseLoad
from slipstream.bench.measure.phase_loops import host_phases
from slipstream.bench.workloads import Item
from slipstream.models.target import Target


def energy_by_phase(target: Target, load: PhaseLoad, items: Sequence[Item]) -> EnergyByPhase | str:
    """Joules per token by phase, or why there are none."""
    found = gauge(target.model.device.type)
    if isinstance(found, str):
        return found
    if target.model.device.type != "cuda":
        return host_phases(target, load, items, *found)
    from slipstream.bench.measure.captured_phases import captured_phases  # needs Triton

    return captured_phases(target, load, items, *found)
