"""Bugs of lossy rules, planted one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream.audit.subject import Subject
from slipstream.audit.tables.lossy import mixture_subject, process_subject
from slipstream.core.array_types import Tensor
from slipstream.core.law import Dense, Law
from slipstream.core.lossy.accept import Bild, Lenient, Typical
from slipstream.core.lossy.cascade import ChowCascade, DifferenceCascade, TokenCascade
from slipstream.core.noise import Noise
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify.token import Token


@dataclass(frozen=True)
class SwappedCascade(DifferenceCascade):
    """Compares the confidences the wrong way round."""

    def mixture(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return super().mixture(draft_probs, target_probs)


@dataclass(frozen=True)
class UnfilledCascade(TokenCascade):
    """Renormalises the good tokens instead of giving their missing mass to the target's law."""

    def mixture(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        good = target_probs >= (1 - self.alpha) * target_probs.amax(-1, keepdim=True)
        kept = torch.where(good, draft_probs, 0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-30)


@dataclass(frozen=True)
class BonusCascade(ChowCascade):
    """Adds a bonus token from the target's law after a draft that was accepted in full."""

    needs_draft = False

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        origin, law = draft.tree.origin, target.dense().clone()
        law[origin] = self.mixture(law[origin], draft.law.dense())
        return Token().verify(draft, Dense(law), noise)


@dataclass(frozen=True)
class DividingLenient(Lenient):
    """Divides by the factor."""

    def accepts(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Tensor:
        return super().accepts(draft, target_probs / self.factor**2, noise)


@dataclass(frozen=True)
class TypicalBits(Typical):
    """Takes the entropy in bits."""

    def accepts(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Tensor:
        bits = torch.special.entr(target_probs.double()).sum(-1) / torch.tensor(2.0).log()
        own: Tensor = target_probs.gather(1, draft.token[:, None])[:, 0]
        threshold: Tensor = (self.delta * (-bits).exp()).clamp(max=self.epsilon)
        return own > threshold


@dataclass(frozen=True)
class OwnDistanceBild(Bild):
    """Measures the distance with the draft model's probability."""

    def accepts(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Tensor:
        distance: Tensor = -draft.law.prob(draft.token).log()
        return distance <= self.rollback


STRICT = Typical(epsilon=0.9, delta=0.7)
NEAR = Bild(fallback=0.3, rollback=1.5)
PLANTED_LOSSY: dict[str, Subject] = {
    "cascade compares p and q the wrong way round": mixture_subject("cascade_difference", "0.1", 2, SwappedCascade),
    "cascade renormalises instead of deferring": mixture_subject("cascade_token", "0.4", 2, UnfilledCascade),
    "cascade with a bonus token of the target": mixture_subject("cascade_chow", "0.4", 2, BonusCascade),
    "lenient divides by its factor": process_subject(Lenient(factor=2.0), 2, lambda: DividingLenient(factor=2.0)),
    "typical takes the entropy in bits": process_subject(STRICT, 2, lambda: TypicalBits(epsilon=0.9, delta=0.7)),
    "bild measures with the draft's probability": process_subject(
        NEAR, 2, lambda: OwnDistanceBild(fallback=0.3, rollback=1.5)
    ),
}
