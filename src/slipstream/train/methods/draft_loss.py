"""The loss of a drafted token: cross-entropy to the target's distribution, or how likely the token is accepted.

A token that is drafted from q is accepted with the probability a, the sum of min(p, q). Cross-entropy is smallest where
q = p, and a is largest there. A small drafter cannot reach p. Where it must choose, -log a prefers what is accepted.
"""

from __future__ import annotations

from torch.nn import functional

from slipstream.core.array_types import Float, Tensor

SMALLEST = 1e-6  # acceptance whose logarithm is taken


def draft_losses(
    logits: Float[Tensor, "n draft_vocab"], target_probs: Float[Tensor, "n draft_vocab"], overlap: float
) -> Float[Tensor, " n"]:
    """The loss of each token: the share `overlap` is -log a, the rest is cross-entropy."""
    losses = functional.cross_entropy(logits, target_probs, reduction="none")
    if not overlap:
        return losses
    accepted = logits.softmax(-1).minimum(target_probs).sum(-1)
    return (1 - overlap) * losses - overlap * accepted.clamp(min=SMALLEST).log()
