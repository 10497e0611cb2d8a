"""Truncates laws by top-k, top-p and min-p on the device. The reference is `core.sampling.law`.

The steps, their order and their numbers are the reference's, so a token at the limit is treated alike: top-k by
logits, top-p by the remaining probabilities, min-p by those after that. Nothing reads a number back from the device,
so the steps can be captured. A row without limits keeps all tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.core.sampling import keep_only, normalise
from slipstream.kernels.gpu.sample import SamplingInputs


def cut(logits: Tensor, sampling: SamplingInputs) -> None:
    """Set the logits of excluded tokens to -inf. `logits` has the same number of consecutive slots for each row."""
    rows, vocab = len(sampling.temperature), logits.shape[1]
    warm, top, mass, least = (
        column.repeat_interleave(len(logits) // rows)[:, None] for column in (sampling.temperature, *sampling.limits)
    )
    greedy = warm == 0
    scaled = (logits - logits.amax(-1, keepdim=True)) / torch.where(greedy, 1.0, warm)
    ranked = scaled.sort(-1, descending=True).values
    last = ranked.gather(1, torch.where(top > 0, top - 1, vocab - 1).long().clamp(max=vocab - 1))
    scaled = scaled.masked_fill(scaled < last, -math.inf)
    probs = normalise(scaled.exp())
    probs = keep_only(probs, (mass >= 1) | (probs >= _edge(probs, mass)))
    probs = keep_only(probs, probs >= least * probs.amax(-1, keepdim=True))
    logits.masked_fill_((probs <= 0) & ~greedy, -math.inf)


def _edge(probs: Tensor, mass: Tensor) -> Tensor:
    """The smallest probability among the most probable tokens whose sum reaches `mass`."""
    ranked = probs.sort(-1, descending=True).values
    below = (ranked.cumsum(-1, dtype=torch.float64) < mass).sum(-1, keepdim=True)
    return ranked.gather(1, below.clamp(max=probs.shape[1] - 1))
