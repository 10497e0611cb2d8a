"""Matching rules: the target chooses a token at every slot, and a draft is kept while it equals the choices.

greedy   the choice is the argmax of the target's law (temperature 0).
coupled  the choice is the winner of the race argmin E_x / p(x) on the field of noise of its position. The drafter ran
         argmin E_x / q(x) on the same field, so the two agree with probability at least (1 - TV) / (1 + TV)
         (arXiv 2408.07978). What is emitted is the target's choice at every position: a function of seed and target
         alone, whoever drafted, how far and how wide. The candidates of a wide draft are those that finish first in
         the draft's race on that field.

Both hold for chains and trees alike.
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
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.DISTINCT, Siblings.CHOSEN)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        tree = draft.tree
        if any(len(line) > 1 for line in tree.children):
            return follow(draft, target, noise)
        site = Site(tree.slot_row, torch.zeros_like(tree.slot_row), tree.slot_depth)
        return keep_matches(draft, noise.draw(target, site, Purpose.FIELD))


def follow(draft: Draft, target: Law, noise: Noise) -> Verdict:
    """`keep_matches` with choices that are made where the walk comes along, all rows a level at a time: of a tree that
    branches most slots are never reached, and a race takes its time. Those of a chain are sooner drawn all at once."""
    tree, device, tokens = draft.tree, draft.token.device, draft.token.tolist()
    paths: list[list[int]] = [[] for _ in range(tree.rows)]
    last, bonus = [0] * tree.rows, [True] * tree.rows
    at = live = list(range(tree.rows))
    while live:
        where = torch.tensor([live, [0] * len(live), [len(paths[r]) for r in live]], device=device)
        slots = torch.tensor(at, device=device)
        laws = target if len(at) == len(target) else target.select(slots)  # of an empty tree all of them
        choice, going, then = noise.draw(laws, Site(*where), Purpose.FIELD).tolist(), [], []
        for r, slot, pick in zip(live, at, choice, strict=True):
            line = tree.children[slot]
            hit = next((node for node in line if tokens[node] == pick), None)
            if hit is None:
                last[r], bonus[r] = pick, not line
            else:
                paths[r].append(hit)
                going.append(r)
                then.append(tree.rows + hit)
        live, at = going, then
    return Verdict(padded(paths, device), torch.tensor(last, device=device), torch.tensor(bonus, device=device))


def keep_matches(draft: Draft, choice: Int[Tensor, " slots"]) -> Verdict:
    """Accept along the target's choices; the choice after the last accepted node is emitted with them. All of it on the
    host, who is to know the verdict anyway: a walk of a few steps is shorter than its algebra."""
    tree, device = draft.tree, choice.device
    if not len(tree):
        return Verdict(choice.new_empty(tree.rows, 0), choice, torch.ones_like(choice, dtype=torch.bool))
    picks = choice.tolist()
    paths = tree.follow(picks, draft.token.tolist())
    end = [tree.rows + path[-1] if path else r for r, path in enumerate(paths)]
    inner = {r if p < 0 else tree.rows + p for r, p in tree.lists}
    token = torch.tensor([picks[slot] for slot in end], dtype=torch.long, device=device)
    bonus = torch.tensor([slot not in inner for slot in end], dtype=torch.bool, device=device)
    return Verdict(padded(paths, device), token, bonus)
