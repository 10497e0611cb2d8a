"""Checks of a request against the model, the same for every engine."""

from __future__ import annotations

from slipstream.core.types import Request


def check_token_ids(request: Request, vocab: int) -> None:
    """Raise ValueError for token ids that the model does not have."""
    params = request.sampling
    named = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "suppress_tokens": params.suppress_tokens,
        "stop_token_ids": request.ends,
    }
    for name, tokens in named.items():
        for token in tokens:
            if not 0 <= token < vocab:
                raise ValueError(f"{name} names token {token}; the model has tokens 0 to {vocab - 1}")
