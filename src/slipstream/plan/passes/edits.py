"""Changes of plans that passes share."""

from __future__ import annotations

from dataclasses import replace

from slipstream.plan.ir.build import CHAIN_RULE, TREE_RULE
from slipstream.plan.ir.nodes import (
    AutoRule,
    DrafterNode,
    DraftNode,
    GuardNode,
    ModelNode,
    Plan,
    PlanNode,
    RouteNode,
    ScoreNode,
    VerifyNode,
)


def replaced(plan: Plan, old: PlanNode, new: PlanNode) -> Plan:
    """The plan with another node in the place of one. Comments stay."""
    new = replace(new, comments=old.comments, remark=old.remark)
    return replace(plan, nodes=tuple(new if node is old else node for node in plan.nodes))


def without_guard(plan: Plan) -> Plan:
    guarded, score, draft = plan.one(GuardNode), plan.one(ScoreNode), plan.one(DraftNode)
    if guarded is None:
        return plan
    plan = replaced(plan, score, replace(score, draft=draft.name))
    return replace(plan, nodes=tuple(node for node in plan.nodes if node is not guarded))


def without_draft(plan: Plan) -> Plan:
    """The plan without its drafters, its draft and what depends on them."""
    score = plan.one(ScoreNode)
    plan = with_chain_rule(replaced(plan, score, replace(score, draft=None)))
    kept = (ModelNode, ScoreNode, VerifyNode, RouteNode)
    nodes = tuple(node for node in plan.nodes if isinstance(node, kept) or node is plan.nodes[-1])
    return replace(plan, nodes=nodes)


def with_drafter(plan: Plan, part: DrafterNode) -> Plan:
    """The plan with another drafter, whose depth the policy chooses."""
    plan = without_draft(plan)
    score = plan.one(ScoreNode)
    plan = replaced(plan, score, replace(score, draft="d"))
    score = plan.one(ScoreNode)
    nodes: list[PlanNode] = []
    for node in plan.nodes:
        nodes += [part, DraftNode("d", part.name)] if node is score else []
        nodes.append(node)
    return replace(plan, nodes=tuple(nodes))


def with_chain_rule(plan: Plan) -> Plan:
    """The rule for chains, where the plan's own choice was for trees."""
    verify = plan.one(VerifyNode)
    if not isinstance(verify.rule, AutoRule) or verify.rule.other != TREE_RULE:
        return plan
    return replaced(plan, verify, replace(verify, rule=replace(verify.rule, other=CHAIN_RULE)))
