"""Block verification: judges the whole drafted block at once (arXiv 2403.10444, algorithm 2).

Along the block the weight w_i = min(1, w_{i-1} p(x_i)/q(x_i)), w_0 = 1, carries credit over from one token to the next,
where the token rule throws it away. The prefix of i tokens is kept with probability

    h_i = S_i / (S_i + 1 - w_i)    with S_i = sum_x max(w_i p(x | x_1..i) - q(x | x_1..i), 0),    h_K = w_K,

the longest kept prefix wins, and the next token comes from max(w_i p - q, 0), normalised. In expectation it accepts at
least as many tokens per cycle as the token rule on the same draft; with one drafted token the two coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import DeviceRule, DeviceVerdict
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Law
from slipstream.core.noise import Noise, Site
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify.token import settle, undrafted

SLACK = 1 + 1e-6  # laws sum to one up to rounding


class Block(Verifier):
    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True
    device_rule: ClassVar[DeviceRule | None] = DeviceRule(DeviceVerdict.BLOCK)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not len(draft.tree):
            return undrafted(draft, target, noise)
        tree = draft.tree
        ratio = ratios(target.prob_at(tree.origin, draft.token), draft.law.prob(draft.token))
        weight = weights(ratio, tree.parent)
        accepted = longest(draft, target, weight.tolist(), noise)
        return settle(draft, target, accepted, before(weight, tree.parent), noise)


def longest(draft: Draft, target: Law, weight: Sequence[float], noise: Noise) -> list[int]:
    """The longest kept prefix of each row, sought from the whole chain down: shorter ones do not matter then, and where
    the draw is not below w_i, which h_i never exceeds, h_i does not either. So few surpluses are ever summed."""
    chain = draft.tree.lines
    accepted, live = list(map(len, chain)), [r for r, nodes in enumerate(chain) if nodes]
    while live:
        ends = [chain[r][accepted[r] - 1] for r in live]
        after = [chain[r][accepted[r]] if accepted[r] < len(chain[r]) else -1 for r in live]

        def exact(chosen: Sequence[int], ends: list[int] = ends, after: list[int] = after) -> list[float]:
            return prefix_acceptance(draft, target, weight, [(ends[i], after[i]) for i in chosen])

        numbers = torch.tensor([accepted[r] - 1 for r in live])
        kept = noise.weigh([weight[i] * SLACK for i in ends], exact, Site(torch.tensor(live), numbers, numbers))
        going = [r for r, keep in zip(live, kept, strict=True) if not keep]
        for r in going:
            accepted[r] -= 1
        live = [r for r in going if accepted[r]]
    return accepted


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


def prefix_acceptance(
    draft: Draft, target: Law, weight: Sequence[float], prefixes: Sequence[tuple[int, int]]
) -> list[float]:
    """h_i of some prefixes, each told by its last node and the one after it, -1 for none: the probability to keep it,
    given that no longer one is kept."""
    values, tree = [weight[i] for i, _ in prefixes], draft.tree
    inner = [n for n, (_, after) in enumerate(prefixes) if after >= 0]
    if not inner:
        return values
    ends, after = torch.tensor([prefixes[n] for n in inner], device=tree.row.device).T
    own = torch.tensor([values[n] for n in inner], dtype=torch.float64, device=ends.device)
    scaled = target.select(ends + tree.rows).dense() * own[:, None]
    surplus = draft.law.select(after).excess(scaled).sum(-1, dtype=torch.float64)
    for n, s in zip(inner, surplus.tolist(), strict=True):
        total = s + 1 - values[n]
        values[n] = s / max(total, 1e-300) if total > 0 else 0.0
    return values
