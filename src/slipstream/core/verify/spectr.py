"""SpecTr: judges independent drafts together by k-sequential selection (arXiv 2310.15141, algorithm 3).

After a slot with target law p, k candidates were drawn independently from one law q, equal ones counted each. They are
tried in turn, each accepted with probability min(1, p(x) / (rho q(x))). One of them is accepted with probability
1 - (1 - b)^k, where b = sum_x min(p(x) / rho, q(x)); so token x comes out of the trial with probability
min(p(x) / rho, q(x)) g, where g = (1 - (1 - b)^k) / b, and where none is accepted it has the law of what p exceeds that
by. There is such a law as long as g <= rho. The smallest such rho accepts most: at least 1 - (1 - 1/k)^k of what any
rule whatsoever could accept of these candidates. A larger rho is valid too, a smaller one is biased: it is found from
above. With one candidate rho = 1, and this is the token rule.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.tree import Siblings
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify.tree import walk

HALVINGS = 24


class SpecTr(Verifier):
    name: ClassVar[str] = "spectr"
    lossless: ClassVar[bool] = True
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.IID,)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        branching = any(len(nodes) > 1 for nodes in draft.tree.children)
        if branching and draft.siblings is not Siblings.IID:
            need = "candidates drawn independently from one law"
            raise ValueError(f"the spectr rule needs {need}; use chosen, replace or no_replace for others")
        return walk(draft, target, noise, trial)


def trial(
    probs: Float[Tensor, "slots vocab"], draft: Draft, nodes: Int[Tensor, "slots width"]
) -> tuple[Float[Tensor, "slots width"], Float[Tensor, "slots vocab"]]:
    """How likely each candidate is accepted, and the law where none is."""
    count = (nodes >= 0).sum(1)
    target_probs, draft_probs = probs.double(), draft.law.select(nodes[:, 0]).dense().double()
    rho = factor(target_probs, draft_probs, count)
    token = draft.token[nodes]
    q = draft_probs.gather(1, token)
    accept = (target_probs.gather(1, token) / (rho[:, None] * torch.where(q > 0, q, 1))).clamp(max=1)
    shared = torch.minimum(target_probs / rho[:, None], draft_probs)
    left = (target_probs - shared * gain(shared.sum(-1), count)[:, None]).clamp(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, target_probs)
    rest = left / left.sum(-1, keepdim=True)
    return torch.where((nodes >= 0) & (q > 0), accept, 0), rest.to(probs.dtype)


def factor(
    target_probs: Float[Tensor, "slots vocab"], draft_probs: Float[Tensor, "slots vocab"], count: Int[Tensor, " slots"]
) -> Float[Tensor, " slots"]:
    """rho between 1 and k, from above: what is owed, g, falls as rho grows, so the upper end stays valid."""
    low, high = torch.ones_like(target_probs[:, 0]), count.to(target_probs.dtype)
    for _ in range(HALVINGS if bool((count > 1).any()) else 0):
        middle = (low + high) / 2
        both = torch.minimum(target_probs / middle[:, None], draft_probs).sum(-1)
        valid = gain(both, count) <= middle
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    return high


def gain(both: Float[Tensor, " slots"], count: Int[Tensor, " slots"]) -> Float[Tensor, " slots"]:
    """g = (1 - (1 - b)^k) / b, which is k where b is 0."""
    positive = both > 0
    safe = torch.where(positive, both, 1).clamp(max=1)
    return torch.where(positive, (1 - (1 - safe) ** count) / safe, count.to(both.dtype))
