"""Lossy acceptance of drafted tokens. The token after the accepted ones comes from the target's law.

typical   A token is accepted if p(x) > min(epsilon, delta exp(-H(p))), where H is the entropy (Medusa, 2401.10774).
lenient   A token is accepted with probability min(1, factor p(x) / q(x)). After a rejection the token comes from the
          residual max(p - q, 0), normalised. With `argmax` a token is accepted if factor p(x) >= max p.
bild      The draft model writes while its largest probability is at least `fallback`. Then the target reads what was
          written, and drops it from the first token with -log p(x) > rollback on (arXiv 2302.07863).

The law of the output depends on where cycles begin. So these rules declare the joint law of the whole process at a
fixed depth, and adaptive depth is refused.

`argmax`: for requests at temperature 0. Laws are those of temperature 1, and the token is the target's largest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from slipstream.core.array_types import Bool, Float, Tensor
from slipstream.core.device import DeviceRule, LossyTest, lossy_rule
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Law
from slipstream.core.noise import Noise, Site
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify.token import residual, settle, undrafted


@dataclass(frozen=True)
class LossyAcceptance(Verifier):
    """Accepts a prefix of each chain by a test of its tokens."""

    lossless: ClassVar[bool] = False
    fixed_schedule: ClassVar[bool] = True
    device_options: ClassVar[tuple[str, ...] | None] = None  # of `LossyTest`; None: ordinary host loop only
    argmax: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass that overrides the test or the residual does not inherit `device_options`."""
        super().__init_subclass__(**kwargs)
        if {"accepts", "residual"} & vars(cls).keys() and "device_options" not in vars(cls):
            cls.device_options = None

    @property
    def device_rule(self) -> DeviceRule | None:  # type: ignore[override]
        if self.device_options is None:
            return None
        first, second = (*(float(getattr(self, name)) for name in self.device_options), 0.0)[:2]
        return lossy_rule(LossyTest(self.name, (first, second), self.argmax))

    @abstractmethod
    def accepts(self, draft: Draft, target_probs: Float[Tensor, "nodes vocab"], noise: Noise) -> Bool[Tensor, " nodes"]:
        """Which drafted tokens pass the test. `target_probs`: before each token."""

    def residual(self, weight: Float[Tensor, "n vocab"], draft: Law) -> Float[Tensor, "n vocab"]:
        """The law of the token at the first rejection: the target's."""
        return weight

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        tree = draft.tree
        if not len(tree):
            return undrafted(draft, target, noise)
        kept = self.accepts(draft, target.select(tree.origin).dense(), noise).tolist()
        accepted = [next((n for n, i in enumerate(line) if not kept[i]), len(line)) for line in tree.lines]
        scale = torch.ones(len(tree), dtype=torch.float64, device=draft.token.device)
        return settle(draft, target, accepted, scale, noise, self.residual)


def _own(draft: Draft, target_probs: Float[Tensor, "nodes vocab"]) -> Float[Tensor, " nodes"]:
    return target_probs.gather(1, draft.token[:, None])[:, 0]


@dataclass(frozen=True)
class Typical(LossyAcceptance):
    name: ClassVar[str] = "typical"
    device_options: ClassVar[tuple[str, ...] | None] = ("epsilon", "delta")
    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} of the rule typical is {getattr(self, name)}; it must be between 0 and 1")

    def accepts(self, draft: Draft, target_probs: Float[Tensor, "nodes vocab"], noise: Noise) -> Bool[Tensor, " nodes"]:
        entropy = torch.special.entr(target_probs.double()).sum(-1)
        threshold: Tensor = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
        return _own(draft, target_probs) > threshold


@dataclass(frozen=True)
class Lenient(LossyAcceptance):
    name: ClassVar[str] = "lenient"
    device_options: ClassVar[tuple[str, ...] | None] = ("factor",)
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and math.isfinite(self.factor)):
            raise ValueError(f"factor of the rule lenient is {self.factor}; it must be 1 (exact) or more")

    def accepts(self, draft: Draft, target_probs: Float[Tensor, "nodes vocab"], noise: Noise) -> Bool[Tensor, " nodes"]:
        own, tree = _own(draft, target_probs).double(), draft.tree
        if self.argmax:
            return self.factor * own >= target_probs.amax(-1)
        draft_prob = draft.law.prob(draft.token).double()
        chance = (self.factor * own / torch.where(draft_prob > 0, draft_prob, 1)).clamp(max=1)
        return noise.flip(torch.where(draft_prob > 0, chance, 0), Site(tree.row, tree.node, tree.depth))

    def residual(self, weight: Float[Tensor, "n vocab"], draft: Law) -> Float[Tensor, "n vocab"]:
        return weight if self.argmax else residual(weight, draft)


@dataclass(frozen=True)
class Bild(LossyAcceptance):
    name: ClassVar[str] = "bild"
    device_options: ClassVar[tuple[str, ...] | None] = ("fallback", "rollback")
    fallback: float = 0.5
    rollback: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.fallback <= 1:
            raise ValueError(f"fallback of the rule bild is {self.fallback}; it must be between 0 and 1")
        if not self.rollback >= 0:
            raise ValueError(f"rollback of the rule bild is {self.rollback}; it must be 0 or more")

    @property
    def stop_below(self) -> float:  # type: ignore[override]
        return self.fallback

    def accepts(self, draft: Draft, target_probs: Float[Tensor, "nodes vocab"], noise: Noise) -> Bool[Tensor, " nodes"]:
        return -_own(draft, target_probs).log() <= self.rollback
