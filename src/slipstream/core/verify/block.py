"""Block verification: verifies the drafted block as a whole (arXiv 2403.10444, algorithm 2).

Each drafted token i has a weight w_i = min(1, w_{i-1} p(x_i)/q(x_i)), with w_0 = 1. The prefix of i tokens is kept with
probability

    h_i = S_i / (S_i + 1 - w_i)    with S_i = sum_x max(w_i p(x | x_1..i) - q(x | x_1..i), 0),    h_K = w_K.

The longest kept prefix is accepted. The next token is sampled from max(w_i p - q, 0), normalised. In expectation the
rule accepts at least as many tokens per cycle as the token rule on the same draft. They agree for one drafted token.
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

SLACK = 1 + 1e-6  # factor on the bound w_i >= h_i, because laws sum to one only up to rounding


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
        accepted = longest_prefix(draft, target, weight.tolist(), noise)
        return settle(draft, target, accepted, weight_before(weight, tree.parent), noise)


def longest_prefix(draft: Draft, target: Law, weight: Sequence[float], noise: Noise) -> list[int]:
    """The length of the longest kept prefix of each row.

    Prefixes are tested from the longest down, so a row stops at the first one that is kept. h_i <= w_i, so a draw of
    at least w_i rejects the prefix without computing the sum S_i over the vocabulary."""
    chain = draft.tree.lines
    accepted, undecided = list(map(len, chain)), [r for r, nodes in enumerate(chain) if nodes]
    while undecided:
        ends = [chain[r][accepted[r] - 1] for r in undecided]
        after = [chain[r][accepted[r]] if accepted[r] < len(chain[r]) else -1 for r in undecided]

        def exact(indices: Sequence[int], ends: list[int] = ends, after: list[int] = after) -> list[float]:
            return prefix_acceptance(draft, target, weight, [(ends[i], after[i]) for i in indices])

        nodes = torch.tensor([accepted[r] - 1 for r in undecided])
        site = Site(torch.tensor(undecided), nodes, nodes)
        kept = noise.flip_bounded([weight[i] * SLACK for i in ends], exact, site)
        rejected = [r for r, keep in zip(undecided, kept, strict=True) if not keep]
        for r in rejected:
            accepted[r] -= 1
        undecided = [r for r in rejected if accepted[r]]
    return accepted


def ratios(target_prob: Float[Tensor, " n"], draft_prob: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """p/q, unclipped; 0 if the draft's law gives its own token probability 0."""
    ratio = target_prob.double() / torch.where(draft_prob > 0, draft_prob, 1).double()
    return torch.where(draft_prob > 0, ratio, 0)


def weights(ratio: Float[Tensor, " nodes"], parent: Int[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """w_i of every node. Parents come before children on the packed axis, so one pass suffices."""
    weight: list[float] = []
    for r, p in zip(ratio.tolist(), parent.tolist(), strict=True):
        weight.append(min(1.0, (weight[p] if p >= 0 else 1.0) * r))
    return torch.tensor(weight, dtype=ratio.dtype, device=ratio.device)


def weight_before(weight: Float[Tensor, " nodes"], parent: Int[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """w_{i-1} of every node: its parent's weight, 1 at the committed end."""
    return torch.cat([weight, weight.new_ones(1)])[parent]


def prefix_acceptance(
    draft: Draft, target: Law, weight: Sequence[float], prefixes: Sequence[tuple[int, int]]
) -> list[float]:
    """h_i of prefixes: the probability of keeping each, given that no longer one is kept.

    A prefix is given by its last node and the drafted node after it, or -1 if it is the whole chain."""
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
