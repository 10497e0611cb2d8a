"""Computes the laws of a pass, and finds the positions that have none, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Tensor
from slipstream.core.interfaces import Drafter, Model, Verifier, sibling_mode
from slipstream.core.law import Law
from slipstream.core.rules import rules
from slipstream.core.shaping import Place, shape
from slipstream.core.tree import Shape
from slipstream.engines.completion import DEAD_END
from slipstream.kernels.cpu.race import LAW_KERNELS

BROKEN = "the model's logits are not finite"


def check_tree(tree: Shape, rule: Verifier, drafter: Drafter, model: Model) -> None:
    """Raise ValueError for a tree that does not fit the model, or if drafter and rule share no sibling mode."""
    tree.check(model.vocab, model.context)
    if sibling_mode(rule, drafter) is None:
        able = [name for name in rules.names() if _samples_trees(rules.get(name), drafter)]
        reason = (
            f"takes no tree of this drafter's ({', '.join(sorted(drafter.siblings))})"
            if rule.siblings
            else "verifies chains"
        )
        raise ValueError(f"the rule {rule.name} {reason}; use {', '.join(able)} for trees")


def _samples_trees(rule: type[Verifier], drafter: Drafter) -> bool:
    """Whether a rule verifies this drafter's trees at any temperature."""
    return not rule.greedy and sibling_mode(rule(), drafter) is not None


def law_of(logits: Tensor, where: Sequence[Place]) -> tuple[Law, dict[int, str]]:
    """The law at every slot, and the slots that have none, with the reason. A row that reaches such a slot fails."""
    samplings = [row.request.sampling for row, _ in where]
    try:
        return sampling.law(shape(logits, where), samplings, LAW_KERNELS), {}
    except Exception:  # some slot has no law: find out which
        shaped, dead = lawful(logits, where)
        return sampling.law(shaped, samplings, LAW_KERNELS), dead


def lawful(logits: Tensor, where: Sequence[Place]) -> tuple[Tensor, dict[int, str]]:
    """Shaped logits that all have a law, and the slots that had none, with the reason."""
    shaped, dead = _shaped(logits, where)
    lost = ~shaped.amax(-1).isfinite()
    if not dead and not bool(lost.any()):
        return shaped, {}
    for slot in lost.nonzero()[:, 0].tolist():
        dead.setdefault(slot, DEAD_END if bool(logits[slot].amax().isfinite()) else BROKEN)
    return shaped.index_fill(0, torch.tensor(sorted(dead), device=shaped.device), 0.0), dead


def _shaped(logits: Tensor, where: Sequence[Place]) -> tuple[Tensor, dict[int, str]]:
    """Shaped logits. If a request's processor or grammar raises, each place is shaped alone to find that request."""
    try:
        return shape(logits, where), {}
    except Exception:
        wide = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()
        dead = {}
        for i, place in enumerate(where):
            try:
                wide[i] = shape(logits[i : i + 1], [place])[0]
            except Exception as error:
                dead[i] = f"the request's own processor or grammar failed: {error}"
        return wide, dead
