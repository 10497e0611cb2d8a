"""Lowers a plan to the settings of the native engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.tree import Shape
from slipstream.plan.ir.check import OVERLAP, STAGES, title
from slipstream.plan.ir.nodes import (
    AdaptiveDepth,
    AutoRule,
    DraftNode,
    GuardNode,
    Plan,
    PlanError,
    StageNode,
    Value,
    VerifyNode,
)
from slipstream.plan.lower.routes import request_route, without_token_route
from slipstream.plan.policy.tree_shapes import parse

PARALLEL = ("tensor_parallel", "pipeline_parallel", "data_parallel")
LOADING = ("dtype", "device", "context", "invariant", "trust_remote_code")


@dataclass(frozen=True)
class NativeSettings:
    """Everything a plan says, as the arguments of the native engine.

    `depth` None: the policy chooses from 0 to `max_depth`."""

    model: str
    loading: Mapping[str, Any]
    drafter: str = "none"  # a registered kind
    options: Mapping[str, Value] = field(default_factory=dict)
    rule: str | None = None  # None: `auto`
    auto: AutoRule = field(default_factory=AutoRule)
    depth: int | None = None
    max_depth: int | None = None  # None: the policy's own
    shape: Shape | None = None
    policy: str | None = None

    @property
    def plain(self) -> bool:
        """Whether the plan has no draft."""
        return self.drafter == "none"


def lower_native(plan: Plan) -> NativeSettings:
    """The settings of a checked plan."""
    if (route := request_route(plan)) is not None:
        raise PlanError(f"{title(route)}: it needs two engines; slipstream.open_plan opens both", route.position)
    plan = without_token_route(plan)
    target, draft, verify = plan.target, plan.one(DraftNode), plan.one(VerifyNode)
    for name in PARALLEL:
        if getattr(target, name) != 1:
            raise PlanError(
                f"{title(target)}: native runs in one process, so it has no {name}; lower the plan to vllm",
                target.position,
            )
    named = None if isinstance(verify.rule, AutoRule) else verify.rule
    rule: dict[str, Any] = {"rule": named, "auto": AutoRule() if named else verify.rule}
    loading = {name: getattr(target, name) for name in LOADING}
    if draft is None:
        return NativeSettings(target.model, loading, depth=0, **rule)
    kind, options = drafting(plan, draft)
    if draft.overlap:
        kind, options = overlapped(kind, options)
    depth = AdaptiveDepth(0, draft.depth) if plan.one(GuardNode) else draft.depth
    adaptive = depth if isinstance(depth, AdaptiveDepth) else None
    return NativeSettings(
        target.model,
        loading,
        kind,
        options,
        **rule,
        depth=None if adaptive else int(draft.depth),
        max_depth=None if adaptive is None or adaptive.high == AdaptiveDepth.high else adaptive.high,
        shape=None if draft.shape is None else parse(draft.shape),
        policy=None if adaptive is None or adaptive.policy == AdaptiveDepth.policy else adaptive.policy,
    )


def overlapped(kind: str, options: Mapping[str, Value]) -> tuple[str, dict[str, Value]]:
    """The drafter that runs another one while the target scores, and its options."""
    return OVERLAP, {"drafter": kind, **{f"{kind}.{key}": value for key, value in options.items()}}


def drafting(plan: Plan, draft: DraftNode) -> tuple[str, dict[str, Value]]:
    """The kind of the drafter and its options. Stages are the options of the drafter `staged`."""
    part = plan.node(draft.drafter)
    if not isinstance(part, StageNode):
        return part.kind, dict(part.options)
    stages = [plan.node(name) for name in part.drafters]
    options: dict[str, Value] = {
        f"{stage.kind}.{key}": value for stage in stages for key, value in stage.options.items()
    }
    return STAGES, {"stages": ",".join(stage.kind for stage in stages), **options}
