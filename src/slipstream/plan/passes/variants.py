"""Passes that take a measured variant of the plan's drafter: fewer tokens, weights of 8 bits, overlap."""

from __future__ import annotations

from dataclasses import replace

from slipstream.plan.ir.nodes import DraftNode, Plan, StageNode
from slipstream.plan.passes.context import PassContext, PassResult, figures_for
from slipstream.plan.passes.edits import replaced
from slipstream.plan.passes.figures import MARGIN, Variant


def trim_vocab(plan: Plan, context: PassContext) -> PassResult:
    """Cut the draft vocabulary, if the drafter was measured to be faster with fewer tokens."""
    return _with_variant(plan, context, "trim-vocab")


def quantise_draft(plan: Plan, context: PassContext) -> PassResult:
    """Round the drafter's weights to 8 bits, if it was measured to be faster so. The output stays exact."""
    return _with_variant(plan, context, "quantise-draft")


def overlap(plan: Plan, context: PassContext) -> PassResult:
    """Draft the next cycle while the target scores, if that was measured to be faster. The output stays the same."""
    draft = plan.one(DraftNode)
    if draft is not None and draft.shape is not None:
        return plan, ("it is for chains, and the plan drafts trees",)
    faster, reasons = _faster_variant(plan, context, "overlap", "with overlap")
    return plan if faster is None else replaced(plan, draft, replace(draft, overlap=True)), reasons


def _with_variant(plan: Plan, context: PassContext, name: str) -> PassResult:
    """The plan with the options of a measured variant of its drafter, if that is clearly faster."""
    faster, reasons = _faster_variant(plan, context, name)
    if faster is None:
        return plan, reasons
    part = plan.node(plan.one(DraftNode).drafter)
    return replaced(plan, part, replace(part, options={**part.options, **faster.options})), reasons


def _faster_variant(
    plan: Plan, context: PassContext, name: str, words: str | None = None
) -> tuple[Variant | None, tuple[str, ...]]:
    """The measured variant of the plan's drafter, or None if it is not clearly faster; and the figures or the reason.

    `words`: what is different about it; default: its options."""
    draft = plan.one(DraftNode)
    if draft is None:
        return None, ("the plan has no draft",)
    figures, part = figures_for(context, name), plan.node(draft.drafter)
    if isinstance(part, StageNode):
        return None, ("it is for one drafter, and the plan has stages",)
    variant = figures.variants.get(name, {}).get(part.kind)
    if variant is None or part.kind not in figures.drafters:
        return None, (f"{part.kind} was not measured so",)
    if variant.point is None:
        return None, (variant.reason,)
    words = words or "with " + ", ".join(f"{key}={value}" for key, value in variant.options.items())
    own, other = figures.best_depth(part.kind).tokens_per_second, variant.point.tokens_per_second
    reason = f"{part.kind} {words}: {other:.1f} tokens/s, without {own:.1f}"
    return variant if other >= MARGIN * own else None, (reason,)
