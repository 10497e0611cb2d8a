"""The levels: which passes run, in which order, and what each of them changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.plan.ir.catalogue import Catalogue
from slipstream.plan.ir.check import check_plan
from slipstream.plan.ir.nodes import Plan, PlanError
from slipstream.plan.ir.parser import near
from slipstream.plan.passes.context import PassContext
from slipstream.plan.passes.passes import PASSES

VARIANTS = ("trim-vocab", "quantise-draft", "overlap")  # passes that change how the chosen drafter runs
LEVELS: Mapping[str, tuple[str, ...]] = {
    "0": ("drop-draft", "place"),
    "1": ("fix-chain", "place"),
    "2": ("select-drafter", "select-depth", "select-shape", *VARIANTS, "guard", "place"),
    "3": ("select-drafter", "stage", *VARIANTS, "adapt-depth", "place"),
    "e": ("select-energy", "place"),
}
ABOUT = {
    "0": "plain decoding",
    "1": "a fixed chain of four tokens",
    "2": "the drafter, depth and tree that are measured to be fastest",
    "3": "the drafter and stages that are measured to be fastest; the policy chooses depth and tree",
    "e": "least joules per token within a latency bound",
}
METERED = ("select-energy",)  # passes that need joules per token
MEASURED = ("select-drafter", "select-depth", "select-shape", "stage", *VARIANTS)  # passes that need figures


@dataclass(frozen=True)
class PassStep:
    """What one pass did: the plan before and after it, and its reasons."""

    name: str
    before: Plan
    after: Plan
    reasons: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.before != self.after


def passes_of(level: str) -> tuple[str, ...]:
    """The names of a level's passes."""
    if level in LEVELS:
        return LEVELS[level]
    raise PlanError(f"there is no level {level!r}; levels are {', '.join(LEVELS)}")


def run_passes(plan: Plan, names: Sequence[str], context: PassContext, catalogue: Catalogue) -> list[PassStep]:
    """Run passes in order. The plan is checked after each of them."""
    steps: list[PassStep] = []
    for name in names:
        if name not in PASSES:
            raise PlanError(f"there is no pass {name!r}; passes are {', '.join(PASSES)}{near(name, PASSES)}")
        after, reasons = PASSES[name](plan, context)
        steps.append(PassStep(name, plan, check_plan(after, catalogue), reasons))
        plan = after
    return steps
