"""Builds the plan that flags and keyword arguments stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipstream.core.rules import rules
from slipstream.core.tree import Shape
from slipstream.plan.ir.nodes import (
    AdaptiveDepth,
    AutoRule,
    CommitNode,
    DrafterNode,
    DraftNode,
    GuardNode,
    ModelNode,
    Plan,
    PlanNode,
    RouteNode,
    ScoreNode,
    Value,
    VerifyNode,
)
from slipstream.plan.policy.config import TreeConfig
from slipstream.plan.policy.tree_shapes import parse

CHAIN_RULE, TREE_RULE, SEEDED_RULE = "block", "no_replace", "coupled"


def build_plan(
    model: str = "smollm2-135m",
    drafter: str = "none",
    *,
    options: Mapping[str, Value] | None = None,
    verify: str | None = None,
    depth: int | AdaptiveDepth | None = None,
    shape: Shape | str | int | None = None,
    policy: str | None = None,
    guard: bool = False,
    name: str | None = None,
    **loading: Any,
) -> Plan:
    """The plan of a target and a drafter of a registered kind.

    `verify` None: `coupled` for requests with a seed, else the rule that accepts most. A lossy rule is allowed, because
    it is named. `depth` None: chosen by the policy. `guard`: drafts of a fixed depth only where they pay. `loading`:
    arguments of the model node."""
    rule: str | AutoRule = verify or AutoRule(SEEDED_RULE, CHAIN_RULE if shape is None else TREE_RULE)
    nodes: list[PlanNode] = [ModelNode("target", model, **loading)]
    plain = drafter == "none" or depth == 0
    if not plain:
        part = _name(drafter)
        nodes += [
            DrafterNode(part, drafter, dict(options or {})),
            DraftNode("d", part, _depth(depth, shape, policy), _text(shape)),
        ]
        nodes += [GuardNode("g", "d")] if guard else []
    nodes += [
        ScoreNode("s", "target", None if plain else "g" if guard else "d"),
        VerifyNode("v", rule, "s", lossy=verify is not None and not rules.get(verify).lossless),
        CommitNode("v"),
    ]
    return Plan(name or f"{_word(model)}.{'plain' if plain else drafter}", tuple(nodes))


def add_route(
    plan: Plan, small: str, *, level: str = RouteNode.level, threshold: float = RouteNode.threshold, score: str = "mean"
) -> Plan:
    """The plan with a route: the model `small` answers where that suffices. It is lossy."""
    verify = plan.one(VerifyNode)
    route = RouteNode("r", "small", verify.name, level, threshold, score, lossy=True)
    commit = replace(plan.nodes[-1], verdict="r")  # type: ignore[call-arg]
    nodes = (plan.nodes[0], ModelNode("small", small), *plan.nodes[1:-1], route, commit)
    return replace(plan, name=f"{plan.name}.route", nodes=nodes)


def _depth(
    depth: int | AdaptiveDepth | None, shape: Shape | str | int | None, policy: str | None
) -> int | AdaptiveDepth:
    if depth is not None:
        return depth
    if shape is not None:
        return parse(shape).depth or TreeConfig().depth
    return AdaptiveDepth(policy=policy or AdaptiveDepth.policy)


def _text(shape: Shape | str | int | None) -> str | None:
    """A shape as a user would write it."""
    if not isinstance(shape, Shape):
        return None if shape is None else str(shape).replace(" ", "")
    return str(shape.nodes) if shape.nodes else ",".join(map(str, shape.parents))


def _name(kind: str) -> str:
    return "drafter" if kind in ("target", "small", "d", "g", "s", "v", "r", "commit") else kind


def _word(model: str) -> str:
    """The last part of a model's name, as a word."""
    return re.sub(r"\W+", "-", model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")).strip("-").lower() or "model"
