"""Tokens that a law all but excludes, in longer texts: one of them is enough, however few samples there are.

The surprise of a token is the probability, under the law of its place, of a token as unlikely as it or more so. A
surprise below x happens with probability at most x, whatever the law. So among n tokens the smallest is below x with
probability at most n x, and a sampler that once drew from another law shows in a single text.
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
