"""Truncates laws by top-k, top-p and min-p on the device. The reference is `core.sampling.law`.

The same steps in the same order on the same numbers, so that a token at the edge falls on the same side: top-k by
logits, top-p by the probabilities that are left, min-p by those after that. Nothing here asks the device for a number,
so that it can be captured; a row that wants no cut keeps everything.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.core.sampling import keep_only, normalise
from slipstream.kernels.gpu.sample import SamplingInputs


def cut(logits: Tensor, sampling: SamplingInputs) -> None:
    """Set what is cut off to -inf. `logits` has the same number of slots for each row, side by side."""
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
    """The least probable of the most probable tokens whose sum reaches `mass`."""
    ranked = probs.sort(-1, descending=True).values
    below = (ranked.cumsum(-1, dtype=torch.float64) < mass).sum(-1, keepdim=True)
    return ranked.gather(1, below.clamp(max=probs.shape[1] - 1))
