"""Lowers routes: a token route to a draft model and a lossy rule, a request route to the plans of its two models."""

from __future__ import annotations

from dataclasses import replace

from slipstream.plan.ir.nodes import (
    AutoRule,
    CommitNode,
    DrafterNode,
    DraftNode,
    ModelNode,
    Plan,
    PlanNode,
    RouteNode,
    ScoreNode,
    VerifyNode,
)

TOKEN_DEPTH = 8  # tokens that the small model writes at most before the large one reads them


def request_route(plan: Plan) -> RouteNode | None:
    """The plan's route between whole answers, or None."""
    route: RouteNode | None = plan.one(RouteNode)
    return route if route is not None and route.level == "request" else None


def token_rule(threshold: float) -> str:
    """The rule of a token route: the small model writes while its largest probability is above the threshold."""
    return f"bild(fallback={threshold:g})"


def without_token_route(plan: Plan) -> Plan:
    """The plan with a draft and a lossy rule in place of a token route. Other plans are returned as they are."""
    route = plan.one(RouteNode)
    if route is None or route.level != "token":
        return plan
    small: ModelNode = plan.node(route.model)
    verify = plan.one(VerifyNode)
    options = {"model": small.model} | ({} if small.dtype == "auto" else {"dtype": small.dtype})
    nodes: list[PlanNode] = []
    for node in plan.nodes:
        if node is small:
            nodes.append(DrafterNode(small.name, "draft_model", options, comments=node.comments, remark=node.remark))
        elif isinstance(node, ScoreNode):
            nodes += [DraftNode(route.name, small.name, TOKEN_DEPTH), replace(node, draft=route.name)]
        elif isinstance(node, VerifyNode):
            nodes.append(replace(node, rule=token_rule(route.threshold), lossy=True))
        elif isinstance(node, CommitNode):
            nodes.append(replace(node, verdict=verify.name))
        elif node is not route:
            nodes.append(node)
    return replace(plan, nodes=tuple(nodes))


def route_plans(plan: Plan) -> tuple[Plan, Plan]:
    """The plans of the small and of the large model of a request route. The small model decodes plainly."""
    route = plan.one(RouteNode)
    small, score, verify = plan.node(route.model), plan.one(ScoreNode), plan.one(VerifyNode)
    large = [node for node in plan.nodes if node is not route and node is not small]
    large[-1] = CommitNode(verify.name)
    steps = (ScoreNode(score.name, small.name), VerifyNode(verify.name, AutoRule(), score.name), large[-1])
    return replace(plan, name=f"{plan.name}.small", nodes=(small, *steps)), replace(plan, nodes=tuple(large))
