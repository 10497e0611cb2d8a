"""The passes by name. Each takes a checked plan and returns a plan and the reason for every change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slipstream.core.rules import rules
from slipstream.plan.ir.build import TREE_RULE
from slipstream.plan.ir.nodes import (
    AdaptiveDepth,
    AutoRule,
    DrafterNode,
    DraftNode,
    GuardNode,
    Plan,
    PlanError,
    ScoreNode,
    StageNode,
    VerifyNode,
)
from slipstream.plan.lower.native import drafting
from slipstream.plan.lower.routes import without_token_route
from slipstream.plan.passes.context import Pass, PassContext, PassResult, figures_for
from slipstream.plan.passes.edits import replaced, with_drafter, without_draft, without_guard
from slipstream.plan.passes.figures import FRONT
from slipstream.plan.passes.variants import overlap, quantise_draft, trim_vocab


def select_drafter(plan: Plan, context: PassContext) -> PassResult:
    """Draft with the drafter that was measured to be fastest, or decode plainly if none is faster."""
    if without_token_route(plan) != plan:
        return plan, ("the small model of the route drafts",)
    figures = figures_for(context, "select-drafter")
    best = figures.best_drafter()
    reasons = tuple(figures.shown(kind) for kind in figures.drafters)
    if best is None:
        return without_draft(plan), (*reasons, "no drafter is faster than plain decoding")
    part = DrafterNode(best, best, dict(figures.options.get(best, {})))
    return with_drafter(plan, part), (*reasons, f"{best} is the fastest")


def select_depth(plan: Plan, context: PassContext) -> PassResult:
    """Draft chains of the depth that was measured to be fastest."""
    draft = plan.one(DraftNode)
    if draft is None:
        return plan, ()
    figures, kind = figures_for(context, "select-depth"), drafting(plan, draft)[0]
    if kind not in figures.drafters:
        raise PlanError(f"select-depth needs figures of {kind}; there are some of {', '.join(figures.drafters)}")
    depth = figures.best_depth(kind).depth
    return replaced(plan, draft, replace(draft, depth=depth, shape=None)), (f"depth {depth} is the fastest of {kind}",)


def select_shape(plan: Plan, context: PassContext) -> PassResult:
    """Draft trees of the size that was measured to be fastest, if they are faster than chains."""
    draft, verify = plan.one(DraftNode), plan.one(VerifyNode)
    if draft is None:
        return plan, ()
    figures, kind = figures_for(context, "select-shape"), drafting(plan, draft)[0]
    tree = figures.best_tree(kind) if kind in figures.drafters else None
    if tree is None or not (isinstance(verify.rule, AutoRule) or rules.get(verify.rule).siblings):
        return plan, ()
    plan = replaced(plan, draft, replace(draft, depth=tree.depth, shape=str(tree.nodes), overlap=False))
    if isinstance(verify.rule, AutoRule):
        plan = replaced(plan, verify, replace(verify, rule=replace(verify.rule, other=TREE_RULE)))
    return plan, (f"trees of {tree.nodes} nodes are faster than chains of {kind}",)


def stage(plan: Plan, context: PassContext) -> PassResult:
    """Put a cheap drafter in front of the plan's own, if the two were measured to be faster."""
    draft = plan.one(DraftNode)
    if draft is None or isinstance(part := plan.node(draft.drafter), StageNode):
        return plan, ()
    point = figures_for(context, "stage").best_stage(part.kind)
    if point is None:
        return plan, ()
    plan = replaced(plan, draft, replace(draft, drafter="stages"))
    at = plan.nodes.index(part)
    front = [DrafterNode(FRONT, FRONT), part, StageNode("stages", (FRONT, part.name))]
    nodes = (*plan.nodes[:at], *front, *plan.nodes[at + 1 :])
    return replace(plan, nodes=nodes), (f"{FRONT} in front of {part.kind}: {point.tokens_per_second:.1f} tokens/s",)


def select_energy(plan: Plan, context: PassContext) -> PassResult:
    """Take the drafter and depth, or plain decoding, with the least joules per token within the latency bound."""
    if without_token_route(plan) != plan:
        return plan, ("the small model of the route drafts",)
    figures = figures_for(context, "select-energy")
    if figures.plain_joules is None:
        raise PlanError("the pass select-energy needs joules per token; plan optimise -O e measures them")
    kind, best = figures.frugal(context.latency)
    ways = [f"plain: {figures.plain_joules:.3f} J, {1000 / figures.plain:.1f} ms"]
    ways += [
        f"{name} depth {point.depth}: {point.joules or 0.0:.3f} J, {1000 / point.tokens_per_second:.1f} ms"
        for name, points in figures.drafters.items()
        for point in points
    ]
    bound = "" if context.latency is None else f" within {1000 * context.latency:g} ms per token"
    reasons = (f"per token ({figures.energy}): {'; '.join(ways)}", f"{kind} takes the least energy{bound}")
    if kind == "none":
        return without_draft(plan), reasons
    plan = with_drafter(plan, DrafterNode(kind, kind, dict(figures.options.get(kind, {}))))
    draft = plan.one(DraftNode)
    return replaced(plan, draft, replace(draft, depth=best.depth)), reasons


def fix_chain(plan: Plan, context: PassContext) -> PassResult:
    """Draft chains of four tokens in every cycle, without looking at anything."""
    draft = plan.one(DraftNode)
    if draft is None:
        return plan, ()
    return replaced(plan, draft, replace(draft, depth=4, shape=None)), ("four drafted tokens in every cycle",)


def adapt_depth(plan: Plan, context: PassContext) -> PassResult:
    """Let the policy choose depth and shape in every cycle."""
    draft = plan.one(DraftNode)
    if draft is None or isinstance(draft.depth, AdaptiveDepth):
        return plan, ()
    plan = without_guard(plan)
    adaptive = replace(draft, depth=AdaptiveDepth(), shape=None)
    return replaced(plan, draft, adaptive), ("the policy chooses depth and tree by measured costs and acceptance",)


def guard(plan: Plan, context: PassContext) -> PassResult:
    """Let a chain of fixed depth be shortened, down to plain decoding, where that is faster."""
    draft, score = plan.one(DraftNode), plan.one(ScoreNode)
    if draft is None or plan.one(GuardNode) is not None:
        return plan, ()
    if isinstance(draft.depth, AdaptiveDepth) or draft.shape is not None:
        return plan, ()
    plan = replaced(plan, score, replace(score, draft="g"))
    at = plan.nodes.index(draft) + 1
    nodes = (*plan.nodes[:at], GuardNode("g", draft.name), *plan.nodes[at:])
    return replace(plan, nodes=nodes), ("a chain that does not pay is shortened",)


def place(plan: Plan, context: PassContext) -> PassResult:
    """Write down the device that `auto` means on this machine."""
    target = plan.target
    if context.device is None or target.device != "auto":
        return plan, ()
    return replaced(plan, target, replace(target, device=context.device)), (f"this machine has {context.device}",)


def specialise(plan: Plan, context: PassContext) -> PassResult:
    """Decide now what requests would decide: the rule, where temperature or seeds are known."""
    verify = plan.one(VerifyNode)
    if not isinstance(verify.rule, AutoRule):
        return plan, ()
    if context.temperature == 0:
        return replaced(plan, verify, replace(verify, rule="greedy")), ("at temperature 0 every rule is greedy",)
    if context.seeded is None:
        return plan, ()
    rule = verify.rule.seeded if context.seeded else verify.rule.other
    known = "all requests have a seed" if context.seeded else "no request has a seed"
    return replaced(plan, verify, replace(verify, rule=rule)), (f"{known}, so the rule is {rule}",)


def lower(plan: Plan, context: PassContext) -> PassResult:
    """Write a token route as the draft and the rule that it stands for."""
    lowered = without_token_route(plan)
    return lowered, () if lowered == plan else ("the small model drafts, and the rule bild keeps its confident tokens",)


def drop_draft(plan: Plan, context: PassContext) -> PassResult:
    """Plain decoding."""
    return without_draft(plan), ()


PASSES: Mapping[str, Pass] = {
    "drop-draft": drop_draft,
    "select-drafter": select_drafter,
    "select-depth": select_depth,
    "select-shape": select_shape,
    "stage": stage,
    "trim-vocab": trim_vocab,
    "quantise-draft": quantise_draft,
    "overlap": overlap,
    "select-energy": select_energy,
    "fix-chain": fix_chain,
    "adapt-depth": adapt_depth,
    "guard": guard,
    "place": place,
    "specialise": specialise,
    "lower": lower,
}
