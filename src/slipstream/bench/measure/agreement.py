"""How near the laws of one arithmetic are to those of another, on real text."""

from __future__ import annotations

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.models.run.torch_model import TorchModel

CHUNK = 64  # tokens of a pass


def laws(model: TorchModel, ids: list[int]) -> Float[Tensor, "tokens vocab"]:
    """Log-probabilities after every token of a text."""
    row, probs = Row(Request(ids[:1])), []
    model.open([row])
    for start in range(0, len(ids), CHUNK):
        drafted = torch.tensor(ids[start + 1 : start + CHUNK])
        draft = Draft(Tree.chains([len(drafted)]), drafted, OneHot(drafted, model.vocab))
        probs.append(model.score([row], draft).logits.double().log_softmax(-1))
        row.tokens += ids[start + 1 : start + CHUNK + 1]
    model.close([row])
    return torch.cat(probs)[: len(ids)]


def compare_laws(
    mine: Float[Tensor, "tokens vocab"], truth: Float[Tensor, "tokens vocab"], ids: list[int]
) -> dict[str, float]:
    """Agreement on the likeliest token, KL from the true laws, and the perplexity of the text."""
    said = torch.tensor(ids[1:], device=mine.device)[:, None]
    return {
        "agreement": (mine.argmax(-1) == truth.argmax(-1)).double().mean().item(),
        "kl": (truth.exp() * (truth - mine)).sum(-1).mean().item(),
        "perplexity": mine[:-1].gather(1, said).mean().neg().exp().item(),
    }
