"""Checks of single nodes. Each raises ValueError with one sentence; `check_plan` adds the node and its position."""

from __future__ import annotations

from slipstream.core.lossy.deferral import build_score, check_threshold
from slipstream.core.rules import rules
from slipstream.core.tree import Siblings
from slipstream.plan import policies
from slipstream.plan.ir.catalogue import Catalogue
from slipstream.plan.ir.nodes import AdaptiveDepth, AutoRule, DrafterNode, DraftNode, ModelNode, RouteNode, VerifyNode
from slipstream.plan.ir.parser import near
from slipstream.plan.policy.tree_shapes import parse

ROUTE_LEVELS = ("request", "token")
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "fp8", "a8")


def check_model(node: ModelNode) -> None:
    if not node.model:
        raise ValueError("the model's name is empty")
    if node.dtype not in DTYPES:
        raise ValueError(f"dtype is {node.dtype}; it must be one of {', '.join(DTYPES)}{near(node.dtype, DTYPES)}")
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        if getattr(node, name) < 1:
            raise ValueError(f"{name} is {getattr(node, name)}; it must be 1 or more")
    if node.context is not None and node.context < 2:
        raise ValueError(f"context is {node.context}; it must be 2 or more")


def check_drafter(node: DrafterNode, catalogue: Catalogue | None) -> None:
    if node.kind == "none":
        raise ValueError("none drafts nothing; for plain decoding leave drafter and draft out")
    if catalogue is None:
        return
    if node.kind not in catalogue.drafters:
        legal = ", ".join(kind for kind in catalogue.drafters if kind != "none")
        raise ValueError(f"there is no drafter {node.kind!r}; one of {legal}{near(node.kind, catalogue.drafters)}")
    catalogue.check_options(node.kind, node.options)


def check_draft(node: DraftNode) -> None:
    if isinstance(node.depth, AdaptiveDepth):
        low, high = node.depth.low, node.depth.high
        if low != 0:
            raise ValueError(f"the depth is adaptive from {low}; it must begin at 0, plain decoding, or be one number")
        if high < 1:
            raise ValueError("the depth is adaptive(0..0), which is plain decoding; leave drafter and draft out")
        policies.get(node.depth.policy)
        if node.shape is not None:
            raise ValueError("a shape is drafted in every cycle, so its depth is a number; without shape it may adapt")
    elif node.depth < 1:
        raise ValueError(f"the depth is {node.depth}; it must be 1 or more, and plain decoding has no draft")
    if node.shape is not None:
        parse(node.shape)
        if node.overlap:
            raise ValueError("drafts that overlap with the target's pass are chains; leave shape or overlap out")


def check_rule(node: VerifyNode, tree: bool) -> None:
    names = (node.rule.seeded, node.rule.other) if isinstance(node.rule, AutoRule) else (node.rule,)
    for name in names:
        rule = rules.get(name)
        rules.make(name)
        if not rule.lossless and not node.lossy:
            raise ValueError(f"the rule {name} is lossy; write lossy=true if that is wanted")
        if isinstance(node.rule, AutoRule) and rule.greedy:
            raise ValueError(f"the rule {name} is for temperature 0, where every rule is greedy; name one for sampling")
        if tree and not rule.siblings:
            trees = ", ".join(other for other in rules if rules.get(other).siblings)
            raise ValueError(f"the rule {name} verifies chains, and the draft is a tree; for trees: {trees}")


def check_schedule(node: VerifyNode, draft: DraftNode | None, guarded: bool) -> None:
    """A rule whose law depends on the depth needs a fixed one, and a rule that mixes two laws needs a draft."""
    if isinstance(node.rule, AutoRule):
        return
    rule = rules.get(node.rule)
    if draft is None and not rule.lossless:
        raise ValueError(f"the rule {node.rule} is about drafted tokens, and the plan has no draft")
    if rule.fixed_schedule and draft is not None and (guarded or isinstance(draft.depth, AdaptiveDepth)):
        raise ValueError(
            f"the law of the rule {node.rule} depends on the depth, so it cannot adapt; write depth=4, without a guard"
        )


def check_route(
    node: RouteNode, small: ModelNode, target: ModelNode, draft: DraftNode | None, verify: VerifyNode
) -> None:
    if node.level not in ROUTE_LEVELS:
        legal = " or ".join(ROUTE_LEVELS)
        raise ValueError(f"level is {node.level}; it must be {legal}{near(node.level, ROUTE_LEVELS)}")
    check_threshold(node.threshold)
    build_score(node.score)
    if not node.lossy:
        raise ValueError("a route is lossy; write lossy=true if that is wanted")
    if small is target:
        raise ValueError(f"it routes from {target.name} to itself; name two models")
    if node.level == "token":
        _check_token_route(node, small, draft, verify)


def _check_token_route(node: RouteNode, small: ModelNode, draft: DraftNode | None, verify: VerifyNode) -> None:
    if draft is not None:
        raise ValueError("at the level token the small model drafts, so the plan has no draft of its own; leave it out")
    if not isinstance(verify.rule, AutoRule):
        raise ValueError("at the level token the route is the rule, so write verify auto()")
    if node.score != RouteNode.score:
        raise ValueError("at the level token the small model's largest probability is the score; leave score out")
    plain = ModelNode(small.name, small.model, dtype=small.dtype)
    if small != plain:
        raise ValueError(f"at the level token the model {small.name} drafts, and takes no argument except dtype")


def check_siblings(rule: str | AutoRule, kind: str, siblings: frozenset[Siblings]) -> None:
    """A tree's candidates are drawn in a way that drafter and rule have in common."""
    for name in (rule.seeded, rule.other) if isinstance(rule, AutoRule) else (rule,):
        if siblings.isdisjoint(rules.get(name).siblings):
            legal = [other for other in rules if not siblings.isdisjoint(rules.get(other).siblings)]
            hint = f"; with {kind}: {', '.join(legal)}" if legal else ""
            raise ValueError(f"the rule {name} cannot verify a tree of {kind}, which draws no such candidates{hint}")
