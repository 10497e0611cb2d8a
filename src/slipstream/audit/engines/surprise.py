"""Detects tokens that the law nearly excludes. One such token is enough, however few samples there are.

The surprise of a token is the probability, under the law of its position, of a token that is at most as likely. A
surprise below x has a probability of at most x under any law. So the smallest surprise of n tokens is below x with a
probability of at most n x. A sampler that once drew from another law can be detected in a single text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import Model
from slipstream.core.law import OneHot
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row


def surprises(model: Model, prompt: Sequence[int], tokens: Sequence[int], temperature: float) -> list[float]:
    """The surprise of every token of a text, from one pass of the target."""
    if not tokens:
        return []
    row = Row(Request(prompt, Sampling(temperature), len(tokens) + 1))
    chosen = torch.tensor(list(tokens))
    drafted = chosen[:-1]
    draft = Draft(Tree.chains([len(drafted)]), drafted, OneHot(drafted, model.vocab))
    model.open([row])
    try:
        logits = model.score([row], draft).logits.double().cpu()
    finally:
        model.close([row])
    return tails((logits / temperature).softmax(-1), chosen)


def tails(probs: Float[Tensor, "n vocab"], chosen: Tensor) -> list[float]:
    own = probs.gather(1, chosen[:, None])
    return (probs * (probs <= own)).sum(-1).tolist()
