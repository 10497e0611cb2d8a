"""Lowers a plan to another engine: what that engine can express, or a `PlanError` that names the node it cannot."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from slipstream.plan.ir.check import title
from slipstream.plan.ir.nodes import (
    AdaptiveDepth,
    AutoRule,
    DrafterNode,
    DraftNode,
    GuardNode,
    Plan,
    PlanError,
    PlanNode,
    RouteNode,
    StageNode,
    Value,
    VerifyNode,
)
from slipstream.plan.lower.native import PARALLEL

DEVICES = "vllm"  # the engine that runs on several devices
# the names that other engines have for our drafters' options: (drafter, option) -> engine -> name
OPTION_NAMES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("ngram", "longest"): {"vllm": "ngram", "llamacpp": "ngram", "transformers": "ngram"},
    ("ngram", "shortest"): {"vllm": "ngram_min"},
    ("early_exit", "layer"): {"transformers": "exit"},
    ("draft_model", "model"): {"vllm": "model", "llamacpp": "model", "transformers": "model"},
    ("eagle", "model"): {"vllm": "model"},
}


@dataclass(frozen=True)
class PeerSettings:
    """A plan as the arguments of another engine. `notes`: what differs from the native engine."""

    engine: str
    model: str
    loading: Mapping[str, Any]
    drafter: str = "none"
    options: Mapping[str, Value] = field(default_factory=dict)
    depth: int | None = None
    rule: str | None = None  # None: the engine's own
    notes: tuple[str, ...] = ()


def lower_peer(plan: Plan, engine: str, drafters: Collection[str], rules: Collection[str]) -> PeerSettings:
    """The settings of a checked plan. `drafters` and `rules`: what the engine has."""
    target, draft, verify = plan.target, plan.one(DraftNode), plan.one(VerifyNode)
    if (route := plan.one(RouteNode)) is not None:
        _fail(route, f"{engine} has no routes; native has")
    parallel = {name: getattr(target, name) for name in PARALLEL if getattr(target, name) != 1}
    if parallel and engine != DEVICES:
        _fail(target, f"{engine} has no {', '.join(parallel)}; {DEVICES} has")
    if target.invariant:
        _fail(target, f"{engine} has no invariant mode; native has")
    loading = {name: getattr(target, name) for name in ("dtype", "device", "context", "trust_remote_code")}
    if draft is None:
        return PeerSettings(engine, target.model, loading, options=parallel)
    part = plan.node(draft.drafter)
    if isinstance(part, StageNode):
        _fail(part, f"{engine} has no stages; native has")
    if part.kind not in drafters:
        legal = ", ".join(name for name in drafters if name != "none")
        _fail(part, f"{engine} has no drafter {part.kind}; it has {legal}")
    if draft.shape is not None:
        _fail(draft, f"{engine} drafts chains; native drafts trees")
    if draft.overlap:
        _fail(draft, f"{engine} does not draft while the target scores; native does")
    guard = plan.one(GuardNode)
    if guard is not None or isinstance(draft.depth, AdaptiveDepth):
        _fail(guard or draft, f"{engine} drafts the same number of tokens in every cycle; write depth=N")
    rule, notes = _rule(verify, engine, rules)
    options = {**_options(part, engine), **parallel}
    return PeerSettings(engine, target.model, loading, part.kind, options, draft.depth, rule, notes)


def _options(part: DrafterNode, engine: str) -> dict[str, Value]:
    """The drafter's options under the engine's own names."""
    options: dict[str, Value] = {}
    for key, value in part.options.items():
        name = OPTION_NAMES.get((part.kind, key), {}).get(engine)
        if name is None:
            _fail(part, f"{engine} has no counterpart of the option {key}")
        options[name] = value
    return options


def _rule(verify: VerifyNode, engine: str, rules: Collection[str]) -> tuple[str | None, tuple[str, ...]]:
    """The rule, and what a user should know about it."""
    if isinstance(verify.rule, AutoRule):
        rule = verify.rule.other if verify.rule.other in rules else None
        if verify.rule.seeded in rules:
            return rule, ()
        return rule, (f"{engine} has no rule {verify.rule.seeded}: a seed repeats only at the same depth",)
    if verify.rule not in rules:
        legal = f"it has {', '.join(rules)}" if rules else "it has one of its own; write verify auto()"
        _fail(verify, f"{engine} has no rule {verify.rule}; {legal}")
    return verify.rule, ()


def _fail(node: PlanNode, message: str) -> NoReturn:
    raise PlanError(f"{title(node)}: {message}", node.position)
