"""Log-probabilities of emitted tokens, for requests with `logprobs`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Tensor
from slipstream.engines.base import Logprob


def token_logprobs(logits: Tensor, tokens: Sequence[int], n: int) -> list[Logprob]:
    """Log-probabilities of tokens under the target, with the n most probable tokens of each position."""
    logprobs = logits.float().log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(n, logprobs.shape[1]), sorted=True)
    pairs = [tuple(zip(i, v, strict=True)) for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [Logprob(token, value, top) for token, value, top in zip(tokens, own, pairs, strict=True)]
