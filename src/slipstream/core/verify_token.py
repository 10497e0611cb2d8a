"""Token-by-token speculative sampling: the rule of arXiv 2302.01318 (algorithm 2) and 2211.17192.

A drafted token x with draft probability q(x) and target probability p(x) is accepted with probability
min(1, p(x) / q(x)). At the first rejection the token is drawn from the residual max(p - q, 0), normalised. Together:
q(x) min(1, p(x)/q(x)) + P(reject) residual(x) = min(p, q)(x) + max(p - q, 0)(x) = p(x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from slipstream.core.interfaces import Verifier
from slipstream.core.law import Dense, Law
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.shapes import Bool, Float, Int, Tensor
from slipstream.core.types import Draft, Verdict


def acceptance(target_prob: Float[Tensor, " *n"], draft_prob: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
    """min(1, p/q); 0 where the draft's law excludes its own token, which an honest drafter never proposes."""
    target_prob = target_prob.to(torch.promote_types(target_prob.dtype, draft_prob.dtype))
    ratio = target_prob / torch.where(draft_prob > 0, draft_prob, 1)
    return torch.where(draft_prob > 0, ratio.clamp(max=1), 0)


def residual(weight: Float[Tensor, "n vocab"], draft: Law) -> Float[Tensor, "n vocab"]:
    """max(weight - q, 0), normalised; the target's law where nothing is left (p = q, and no token is rejected)."""
    left = draft.excess(weight)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, weight)
    return left / left.sum(-1, keepdim=True)


Acceptance = Callable[[Tensor, Tensor], Tensor]
Residual = Callable[[Tensor, Law], Tensor]


class Token(Verifier):
    name: ClassVar[str] = "token"
    lossless: ClassVar[bool] = True

    def __init__(self, acceptance: Acceptance = acceptance, residual: Residual = residual) -> None:
        self.acceptance, self.residual = acceptance, residual

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not len(draft.tree):
            return undrafted(draft, target, noise)
        tree = draft.tree
        target_prob = target.prob_at(tree.origin, draft.token)
        accept = self.acceptance(target_prob, draft.law.prob(draft.token))
        kept = noise.flip(accept, Site(tree.row, tree.node, tree.depth))
        accepted = along(kept, tree.chain).long().cumprod(1).sum(1)
        return settle(draft, target, accepted, torch.ones_like(target_prob), noise, self.residual)


def undrafted(draft: Draft, target: Law, noise: Noise) -> Verdict:
    """Where nobody drafted anything: a token from the target's law, as `settle` would draw it."""
    none = torch.zeros(draft.tree.rows, dtype=torch.long, device=draft.tree.row.device)
    token = noise.draw(target, Site(torch.arange(len(none), device=none.device), none, none), Purpose.EMIT)
    return Verdict(none.new_zeros(len(none), 0), token, bonus=torch.ones_like(none, dtype=torch.bool))


def along(kept: Bool[Tensor, " nodes"], chain: Int[Tensor, "rows depth"]) -> Bool[Tensor, "rows depth"]:
    """Verdicts on packed nodes laid along each row's chain, False past its end."""
    return torch.cat([kept, kept.new_zeros(1)])[chain]  # -1, past the end, is the last element


def settle(
    draft: Draft,
    target: Law,
    accepted: Int[Tensor, " rows"],
    scale: Float[Tensor, " nodes"],
    noise: Noise,
    residual: Residual = residual,
) -> Verdict:
    """Cut each chain after its accepted tokens and draw the one that follows: from the target's law after a whole
    chain, otherwise from what `scale` times it exceeds the law of the rejected node by."""
    tree, chain = draft.tree, draft.tree.chain
    drafted = (chain >= 0).sum(1)
    path = torch.where(torch.arange(chain.shape[1], device=chain.device) < accepted[:, None], chain, -1)
    end = tree.end(path)
    probs = target.select(end).dense()
    (cut,) = torch.nonzero(accepted < drafted, as_tuple=True)
    if len(cut):
        node = chain[cut, accepted[cut]]
        weight = probs[cut] * scale[node, None]
        probs = probs.index_copy(0, cut, residual(weight, draft.law.select(node)).to(probs.dtype))
    site = Site(torch.arange(tree.rows, device=chain.device), accepted, accepted)
    return Verdict(path, noise.draw(Dense(probs), site, Purpose.EMIT), bonus=accepted == drafted)
