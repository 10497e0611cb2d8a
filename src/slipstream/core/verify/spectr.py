"""SpecTr: verifies independent candidates by k-sequential selection (arXiv 2310.15141, algorithm 3).

After a slot with target law p, k candidates were sampled independently from one law q; equal ones count separately.

- They are tried in order. Each is accepted with probability min(1, p(x) / (rho q(x))).
- One of them is accepted with probability 1 - (1 - b)^k, where b = sum_x min(p(x) / rho, q(x)).
- So token x is accepted with probability min(p(x) / rho, q(x)) g, where g = (1 - (1 - b)^k) / b.
- If none is accepted, the token is sampled from p(x) - min(p(x) / rho, q(x)) g, normalised.

That difference is non-negative if g <= rho. The smallest such rho accepts most: at least 1 - (1 - 1/k)^k of the optimum
over all rules. A larger rho is exact too, a smaller one is biased, so the search approaches rho from above. With one
candidate rho = 1, which is the token rule.
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

HALVINGS = 24  # steps of the binary search for rho


class SpecTr(Verifier):
    name: ClassVar[str] = "spectr"
    lossless: ClassVar[bool] = True
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.IID,)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        branching = any(len(nodes) > 1 for nodes in draft.tree.children)
        if branching and draft.siblings is not Siblings.IID:
            need = "candidates drawn independently from one law"
            raise ValueError(f"the spectr rule needs {need}; use chosen, replace or no_replace for others")
        return walk(draft, target, noise, k_sequential)


def k_sequential(
    probs: Float[Tensor, "slots vocab"], draft: Draft, nodes: Int[Tensor, "slots width"]
) -> tuple[Float[Tensor, "slots width"], Float[Tensor, "slots vocab"]]:
    """The acceptance probability of each candidate, and the law of the token if none is accepted."""
    count = (nodes >= 0).sum(1)
    target_probs, draft_probs = probs.double(), draft.law.select(nodes[:, 0]).dense().double()
    rho = factor(target_probs, draft_probs, count)
    token = draft.token[nodes]
    q = draft_probs.gather(1, token)
    accept = (target_probs.gather(1, token) / (rho[:, None] * torch.where(q > 0, q, 1))).clamp(max=1)
    overlap = torch.minimum(target_probs / rho[:, None], draft_probs)
    excess = (target_probs - overlap * gain(overlap.sum(-1), count)[:, None]).clamp(min=0)
    excess = torch.where(excess.sum(-1, keepdim=True) > 0, excess, target_probs)
    residual = excess / excess.sum(-1, keepdim=True)
    return torch.where((nodes >= 0) & (q > 0), accept, 0), residual.to(probs.dtype)


def factor(
    target_probs: Float[Tensor, "slots vocab"], draft_probs: Float[Tensor, "slots vocab"], count: Int[Tensor, " slots"]
) -> Float[Tensor, " slots"]:
    """rho by binary search between 1 and k. g(rho) <= rho holds at the upper end in every step."""
    low, high = torch.ones_like(target_probs[:, 0]), count.to(target_probs.dtype)
    for _ in range(HALVINGS if bool((count > 1).any()) else 0):
        middle = (low + high) / 2
        overlap = torch.minimum(target_probs / middle[:, None], draft_probs).sum(-1)
        valid = gain(overlap, count) <= middle
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    return high


def gain(overlap: Float[Tensor, " slots"], count: Int[Tensor, " slots"]) -> Float[Tensor, " slots"]:
    """g = (1 - (1 - b)^k) / b, with limit k at b = 0. `overlap` is b, `count` is k."""
    positive = overlap > 0
    safe = torch.where(positive, overlap, 1).clamp(max=1)
    return torch.where(positive, (1 - (1 - safe) ** count) / safe, count.to(overlap.dtype))
