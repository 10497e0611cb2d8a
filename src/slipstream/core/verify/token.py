"""Token-by-token speculative sampling: the rule of arXiv 2302.01318 (algorithm 2) and 2211.17192.

A drafted token x with draft probability q(x) and target probability p(x) is accepted with probability
min(1, p(x) / q(x)). At the first rejection the token is sampled from the residual max(p - q, 0), normalised. Together:
q(x) min(1, p(x)/q(x)) + P(reject) residual(x) = min(p, q)(x) + max(p - q, 0)(x) = p(x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import DeviceRule, DeviceVerdict
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Dense, Law
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import padded
from slipstream.core.types import Draft, Verdict


def acceptance(target_prob: Float[Tensor, " *n"], draft_prob: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
    """min(1, p/q); 0 if q = 0, which happens only if a drafter reports a wrong law."""
    target_prob = target_prob.to(torch.promote_types(target_prob.dtype, draft_prob.dtype))
    ratio = target_prob / torch.where(draft_prob > 0, draft_prob, 1)
    return torch.where(draft_prob > 0, ratio.clamp(max=1), 0)


def residual(weight: Float[Tensor, "n vocab"], draft: Law) -> Float[Tensor, "n vocab"]:
    """max(weight - q, 0), normalised. `weight` itself if the excess is zero (p = q: no token is rejected)."""
    excess = draft.excess(weight)
    excess = torch.where(excess.sum(-1, keepdim=True) > 0, excess, weight)
    return excess / excess.sum(-1, keepdim=True)


Acceptance = Callable[[Tensor, Tensor], Tensor]
Residual = Callable[[Tensor, Law], Tensor]


@dataclass(frozen=True, eq=False)
class ResidualLaw(Law):
    """The residual distribution max(scale * p - q, 0), normalised.

    It is computed when first read. A kernel can sample from it without computing it: each float64 pass over a
    vocabulary is slow."""

    target_probs: Float[Tensor, "n vocab"]
    scale: Float[Tensor, " n"]
    draft: Law
    residual: Residual = residual

    @cached_property
    def law(self) -> Dense:
        scaled = self.target_probs * self.scale[:, None]
        return Dense(self.residual(scaled, self.draft).to(self.target_probs.dtype))

    @property
    def vocab(self) -> int:  # type: ignore[override]
        return self.target_probs.shape[-1]

    def __len__(self) -> int:
        return len(self.target_probs)

    @property
    def width(self) -> int:
        return self.vocab

    @property
    def device(self) -> torch.device:
        return self.target_probs.device

    def prob(self, token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.law.prob(token)

    def select(self, index: Int[Tensor, " m"]) -> Law:
        return self.law.select(index)

    def dense(self) -> Float[Tensor, "n vocab"]:
        return self.law.dense()

    def excess(self, weight: Float[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
        return self.law.excess(weight)

    def to(self, device: torch.device) -> Law:
        return self.law.to(device)

    def support(self) -> tuple[Int[Tensor, "n s"], Float[Tensor, "n s"]]:
        return self.law.support()


OF_THE_PAPER = acceptance, residual


class Token(Verifier):
    name: ClassVar[str] = "token"
    lossless: ClassVar[bool] = True
    device_rule: ClassVar[DeviceRule | None] = DeviceRule(DeviceVerdict.TOKEN)

    def __init__(self, acceptance: Acceptance = acceptance, residual: Residual = residual) -> None:
        self.acceptance, self.residual = acceptance, residual
        if (acceptance, residual) != OF_THE_PAPER:  # kernels have these
            self.device_rule = None  # type: ignore[misc]

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not len(draft.tree):
            return undrafted(draft, target, noise)
        tree = draft.tree
        target_prob = target.prob_at(tree.origin, draft.token)
        accept = self.acceptance(target_prob, draft.law.prob(draft.token))
        kept = noise.flip(accept, Site(tree.row, tree.node, tree.depth)).tolist()
        accepted = [next((n for n, i in enumerate(line) if not kept[i]), len(line)) for line in tree.lines]
        return settle(draft, target, accepted, torch.ones_like(accept, dtype=torch.float64), noise, self.residual)


def undrafted(draft: Draft, target: Law, noise: Noise) -> Verdict:
    """The verdict on an empty draft: a token from the target's law, with the same draws as `settle`."""
    zero = torch.zeros(draft.tree.rows, dtype=torch.long, device=draft.tree.row.device)
    token = noise.draw(target, Site(torch.arange(len(zero), device=zero.device), zero, zero), Purpose.EMIT)
    return Verdict(zero.new_zeros(len(zero), 0), token, bonus=torch.ones_like(zero, dtype=torch.bool))


def settle(
    draft: Draft,
    target: Law,
    accepted: Sequence[int],
    scale: Float[Tensor, " nodes"],
    noise: Noise,
    residual: Residual = residual,
) -> Verdict:
    """Accept the first `accepted[r]` tokens of each chain and draw the token that follows.

    It comes from the target's law if the whole chain was accepted, otherwise from the residual of `scale` times the
    target's law and the law of the rejected node."""
    tree, device = draft.tree, draft.token.device
    lines, token = tree.lines, [0] * tree.rows
    bonus = [count == len(line) for count, line in zip(accepted, lines, strict=True)]
    end = [tree.rows + line[n - 1] if n else r for r, (n, line) in enumerate(zip(accepted, lines, strict=True))]
    for is_bonus in (True, False):
        rows = [r for r, flag in enumerate(bonus) if flag == is_bonus]
        if not rows:
            continue
        law = target.select(torch.tensor([end[r] for r in rows], device=device))
        if not is_bonus:
            node = torch.tensor([lines[r][accepted[r]] for r in rows], device=device)
            law = ResidualLaw(law.dense(), scale[node], draft.law.select(node), residual)
        count = torch.tensor([accepted[r] for r in rows])
        drawn = noise.draw(law, Site(torch.tensor(rows), count, count), Purpose.EMIT).tolist()
        for r, drawn_token in zip(rows, drawn, strict=True):
            token[r] = drawn_token
    path = padded([line[:n] for n, line in zip(accepted, lines, strict=True)], device)
    return Verdict(path, torch.tensor(token, device=device), torch.tensor(bonus, device=device))
