"""Compares the laws of two numerical precisions on real text."""

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
    log_probs: Float[Tensor, "tokens vocab"], reference: Float[Tensor, "tokens vocab"], ids: list[int]
) -> dict[str, float]:
    """Agreement on the most probable token, KL divergence from the reference, and the perplexity of the text."""
    next_ids = torch.tensor(ids[1:], device=log_probs.device)[:, None]
    return {
        "agreement": (log_probs.argmax(-1) == reference.argmax(-1)).double().mean().item(),
        "kl": (reference.exp() * (reference - log_probs)).sum(-1).mean().item(),
        "perplexity": log_probs[:-1].gather(1, next_ids).mean().neg().exp().item(),
    }
