"""Block verification: the whole drafted block is judged at once (arXiv 2403.10444, algorithm 2).

Along the block the weight w_i = min(1, w_{i-1} p(x_i)/q(x_i)), w_0 = 1, carries credit over from one token to the next,
where the token rule throws it away. The prefix of i tokens is kept with probability

    h_i = S_i / (S_i + 1 - w_i)    with S_i = sum_x max(w_i p(x | x_1..i) - q(x | x_1..i), 0),    h_K = w_K,

the longest kept prefix wins, and the next token comes from max(w_i p - q, 0), normalised. In expectation it accepts at
least as many tokens per cycle as the token rule on the same draft; with one drafted token the two coincide.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from slipstream.core.interfaces import Verifier
from slipstream.core.law import Law
from slipstream.core.noise import Noise, Site
from slipstream.core.shapes import Float, Int, Tensor
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify_token import along, settle, undrafted


class Block(Verifier):
    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not len(draft.tree):
            return undrafted(draft, target, noise)
        tree = draft.tree
        ratio = ratios(target.prob_at(tree.origin, draft.token), draft.law.prob(draft.token))
        weight = weights(ratio, tree.parent)
        kept = noise.flip(prefix_acceptance(draft, target, weight), Site(tree.row, tree.node, tree.depth))
        reached = along(kept, tree.chain).long()
        steps = torch.arange(1, reached.shape[1] + 1, device=reached.device)
        accepted = (reached * steps).amax(1) if reached.shape[1] else reached.sum(1)
        return settle(draft, target, accepted, before(weight, tree.parent), noise)


def ratios(target_prob: Float[Tensor, " n"], draft_prob: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """p/q, unclipped; 0 where the draft's law excludes its own token."""
    ratio = target_prob.double() / torch.where(draft_prob > 0, draft_prob, 1).double()
    return torch.where(draft_prob > 0, ratio, 0)


def weights(ratio: Float[Tensor, " nodes"], parent: Int[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """w_i of every node. A chain's nodes stand in order, so one walk over the packed axis does."""
    done: list[float] = []
    for r, p in zip(ratio.tolist(), parent.tolist(), strict=True):
        done.append(min(1.0, (done[p] if p >= 0 else 1.0) * r))
    return torch.tensor(done, dtype=ratio.dtype, device=ratio.device)


def before(weight: Float[Tensor, " nodes"], parent: Int[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """w_{i-1}: the weight carried into each node, 1 at the start."""
    return torch.cat([weight, weight.new_ones(1)])[parent]


def prefix_acceptance(draft: Draft, target: Law, weight: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """h_i of every node: the probability to keep the prefix that ends there, given that no longer one is kept."""
    tree = draft.tree
    (inner,) = torch.nonzero(tree.parent >= 0, as_tuple=True)  # nodes that follow a drafted one
    if not len(inner):
        return weight
    prefix = tree.parent[inner]
    scaled = target.select(prefix + tree.rows).dense() * weight[prefix, None]
    surplus = draft.law.select(inner).excess(scaled).sum(-1, dtype=weight.dtype)
    total = surplus + 1 - weight[prefix]
    return weight.index_copy(0, prefix, torch.where(total > 0, surplus / total.clamp(min=1e-300), 0))
