"""Matching rules: the target chooses a token at every slot, and drafted tokens are accepted while they equal it.

greedy   The choice is the argmax of the target's law (temperature 0).
coupled  The choice is the winner of the race argmin E_x / p(x) with the noise of its position. The drafter ran
         argmin E_x / q(x) with the same noise, so the two agree with probability at least (1 - TV) / (1 + TV)
         (arXiv 2408.07978). The emitted tokens are the target's choices. They depend on seed and target only, not on
         the drafter, the depth or the width. The candidates of a tree are the first finishers of the draft's race.

Both rules verify chains and trees.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.device import DeviceRule, DeviceVerdict
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Law, OneHot
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import Siblings, padded
from slipstream.core.types import Draft, Verdict


class Greedy(Verifier):
    name: ClassVar[str] = "greedy"
    lossless: ClassVar[bool] = True
    greedy: ClassVar[bool] = True
    device_rule: ClassVar[DeviceRule | None] = DeviceRule(DeviceVerdict.MATCH, greedy=True, trees=True)
    siblings: ClassVar[tuple[Siblings, ...]] = tuple(Siblings)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not isinstance(target, OneHot):
            raise ValueError("the greedy rule needs temperature 0; use token, block or coupled for sampling")
        return keep_matches(draft, target.token)


class Coupled(Verifier):
    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    device_rule: ClassVar[DeviceRule | None] = DeviceRule(DeviceVerdict.MATCH, shared=True, trees=True)
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.DISTINCT, Siblings.CHOSEN, Siblings.IID)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        tree = draft.tree
        if any(len(nodes) > 1 for nodes in tree.children):
            return match_tree(draft, target, noise)
        site = Site(tree.slot_row, torch.zeros_like(tree.slot_row), tree.slot_depth)
        return keep_matches(draft, noise.draw(target, site, Purpose.FIELD))


def match_tree(draft: Draft, target: Law, noise: Noise) -> Verdict:
    """`keep_matches` that draws only the choices it needs, level by level, all rows of a level in one draw.

    Most slots of a branching tree are not reached, and a race over the vocabulary is slow. For a chain one draw for
    all slots is faster."""
    tree, device, tokens = draft.tree, draft.token.device, draft.token.tolist()
    paths: list[list[int]] = [[] for _ in range(tree.rows)]
    last, bonus = [0] * tree.rows, [True] * tree.rows
    slots = rows = list(range(tree.rows))
    while rows:
        site = torch.tensor([rows, [0] * len(rows), [len(paths[r]) for r in rows]], device=device)
        index = torch.tensor(slots, device=device)
        laws = target if len(slots) == len(target) else target.select(index)  # all slots of an empty tree
        choices = noise.draw(laws, Site(*site), Purpose.FIELD).tolist()
        next_rows, next_slots = list[int](), list[int]()
        for r, slot, choice in zip(rows, slots, choices, strict=True):
            children = tree.children[slot]
            match = next((node for node in children if tokens[node] == choice), None)
            if match is None:
                last[r], bonus[r] = choice, not children
            else:
                paths[r].append(match)
                next_rows.append(r)
                next_slots.append(tree.rows + match)
        rows, slots = next_rows, next_slots
    return Verdict(padded(paths, device), torch.tensor(last, device=device), torch.tensor(bonus, device=device))


def keep_matches(draft: Draft, choice: Int[Tensor, " slots"]) -> Verdict:
    """Accept the path that follows the target's choices, and emit the choice after it.

    Runs on the host, which needs the verdict anyway: a loop of a few steps is faster than tensor operations."""
    tree, device = draft.tree, choice.device
    if not len(tree):
        return Verdict(choice.new_empty(tree.rows, 0), choice, torch.ones_like(choice, dtype=torch.bool))
    choices = choice.tolist()
    paths = tree.follow(choices, draft.token.tolist())
    end = [tree.rows + path[-1] if path else r for r, path in enumerate(paths)]
    with_children = {r if p < 0 else tree.rows + p for r, p in tree.lists}
    token = torch.tensor([choices[slot] for slot in end], dtype=torch.long, device=device)
    bonus = torch.tensor([slot not in with_children for slot in end], dtype=torch.bool, device=device)
    return Verdict(padded(paths, device), token, bonus)
