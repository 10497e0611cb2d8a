"""What passes know and return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.plan.ir.nodes import Plan, PlanError
from slipstream.plan.passes.figures import Figures


@dataclass(frozen=True)
class PassContext:
    """What passes may know besides the plan. None: not known, and nothing is decided by it."""

    figures: Figures | None = None
    device: str | None = None  # of this machine: cpu or cuda
    temperature: float | None = None  # of all requests
    seeded: bool | None = None  # whether all requests have a seed, or none has
    latency: float | None = None  # most seconds per token


PassResult = tuple[Plan, tuple[str, ...]]
Pass = Callable[[Plan, PassContext], PassResult]


def figures_for(context: PassContext, name: str) -> Figures:
    """The figures that the pass `name` decides by."""
    if context.figures is None:
        raise PlanError(f"the pass {name} needs figures of this machine; plan optimise measures them")
    return context.figures
