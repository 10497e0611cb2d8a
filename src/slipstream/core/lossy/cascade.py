"""Speculative cascades: each token follows a mixture of the small and the large model's laws (arXiv 2405.19261).

q is the law of the draft model, p that of the target. At every position the output law is

    chow              pi = q if max q >= 1 - alpha, else p
    difference        pi = q if max q >= max p - alpha, else p
    total variation   pi = q if max q >= max p - alpha TV(p, q), else p
    token-specific    pi(x) = q(x) [x is good] + p(x) (1 - q(good)), where x is good if p(x) >= (1 - alpha) max p

A drafted token x is accepted with probability min(1, pi(x) / q(x)). At the first rejection the token is drawn from
max(pi - q, 0), normalised. So every token has the law pi, whatever the depth. That holds for the last token of a cycle
too: there is no bonus token, for which q is not known, and a cycle emits at most as many tokens as it drafted.

`argmax`: for requests at temperature 0. Laws are those of temperature 1, and each token is the largest of pi.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.device import DeviceRule, LossyTest, lossy_rule
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Dense, Law
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import padded
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify.token import ResidualLaw, acceptance

Probs = Float[Tensor, "n vocab"]


@dataclass(frozen=True)
class CascadeRule(Verifier):
    """`alpha`: what the small model may lack; 0 asks most of it."""

    lossless: ClassVar[bool] = False
    needs_draft: ClassVar[bool] = True
    alpha: float = 0.2
    argmax: bool = False

    device_kind: ClassVar[str | None] = None  # of `LossyTest`; None: it runs in the ordinary host loop only

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass that overrides `mixture` does not inherit `device_kind`."""
        super().__init_subclass__(**kwargs)
        if "mixture" in vars(cls) and "device_kind" not in vars(cls):
            cls.device_kind = None

    @property
    def device_rule(self) -> DeviceRule | None:  # type: ignore[override]
        kind = self.device_kind
        return None if kind is None else lossy_rule(LossyTest(kind, (self.alpha, 0.0), self.argmax))

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha of the rule {self.name} is {self.alpha}; it must be between 0 and 1")

    @abstractmethod
    def mixture(self, target_probs: Probs, draft_probs: Probs) -> Probs:
        """pi of every position."""

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        tree, device = draft.tree, draft.token.device
        lines = tree.lines
        if not all(lines):
            raise ValueError(f"the rule {self.name} needs a draft in every cycle, and the drafter gave none")
        draft_probs = draft.law.dense().double()
        law = self.mixture(target.select(tree.origin).dense().double(), draft_probs)
        site = Site(tree.row, tree.node, tree.depth)
        if self.argmax:
            kept = (law.argmax(-1) == draft.token).tolist()
        else:
            own = draft.token[:, None]
            kept = noise.flip(acceptance(law.gather(1, own)[:, 0], draft_probs.gather(1, own)[:, 0]), site).tolist()
        accepted = [next((n for n, i in enumerate(line) if not kept[i]), len(line)) for line in lines]
        whole = [count == len(line) for count, line in zip(accepted, lines, strict=True)]
        last = [line[min(n, len(line) - 1)] for n, line in zip(accepted, lines, strict=True)]
        token = draft.token[torch.tensor(last, device=device)]
        if not all(whole):
            rows = [r for r, done in enumerate(whole) if not done]
            token = token.index_copy(
                0, torch.tensor(rows, device=device), self._recovered(rows, last, law, draft_probs, noise, accepted)
            )
        paths = [line[: len(line) - 1 if done else n] for n, line, done in zip(accepted, lines, whole, strict=True)]
        return Verdict(padded(paths, device), token, torch.tensor(whole, device=device))

    def _recovered(
        self, rows: list[int], last: list[int], law: Probs, draft_probs: Probs, noise: Noise, accepted: list[int]
    ) -> Tensor:
        """The tokens at the first rejections of these rows."""
        node = torch.tensor([last[r] for r in rows], device=law.device)
        if self.argmax:
            return law[node].argmax(-1)
        count = torch.tensor([accepted[r] for r in rows])
        left = ResidualLaw(law[node], torch.ones_like(law[node, 0]), Dense(draft_probs[node]))
        return noise.draw(left, Site(torch.tensor(rows), count, count), Purpose.EMIT).to(law.device)


def _either(defer: Tensor, target_probs: Probs, draft_probs: Probs) -> Probs:
    return torch.where(defer[:, None], target_probs, draft_probs)


@dataclass(frozen=True)
class ChowCascade(CascadeRule):
    name: ClassVar[str] = "cascade_chow"
    device_kind: ClassVar[str | None] = "chow"

    def mixture(self, target_probs: Probs, draft_probs: Probs) -> Probs:
        return _either(draft_probs.amax(-1) < 1 - self.alpha, target_probs, draft_probs)


@dataclass(frozen=True)
class DifferenceCascade(CascadeRule):
    name: ClassVar[str] = "cascade_difference"
    device_kind: ClassVar[str | None] = "difference"

    def mixture(self, target_probs: Probs, draft_probs: Probs) -> Probs:
        defer = draft_probs.amax(-1) < target_probs.amax(-1) - self.alpha
        return _either(defer, target_probs, draft_probs)


@dataclass(frozen=True)
class TotalVariationCascade(CascadeRule):
    name: ClassVar[str] = "cascade_tv"
    device_kind: ClassVar[str | None] = "tv"

    def mixture(self, target_probs: Probs, draft_probs: Probs) -> Probs:
        distance = (target_probs - draft_probs).abs().sum(-1) / 2
        defer = draft_probs.amax(-1) < target_probs.amax(-1) - self.alpha * distance
        return _either(defer, target_probs, draft_probs)


@dataclass(frozen=True)
class TokenCascade(CascadeRule):
    name: ClassVar[str] = "cascade_token"
    device_kind: ClassVar[str | None] = "token"

    def mixture(self, target_probs: Probs, draft_probs: Probs) -> Probs:
        good = target_probs >= (1 - self.alpha) * target_probs.amax(-1, keepdim=True)
        kept = torch.where(good, draft_probs, 0)
        return kept + target_probs * (1 - kept.sum(-1, keepdim=True))
