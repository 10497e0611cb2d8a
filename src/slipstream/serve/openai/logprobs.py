"""Log-probabilities as OpenAI's API and vLLM's write them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from slipstream.engines.base import Logprob
from slipstream.models.text.codec import TextCodec

LOWEST = -9999.0  # JSON has no infinity; OpenAI writes this


def chat_logprobs(text: TextCodec, entries: Sequence[Logprob]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    content = [
        _entry(text, own.token_id, own.logprob)
        | {"top_logprobs": [_entry(text, token, value) for token, value in own.top_logprobs]}
        for own in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    text: TextCodec, entries: Sequence[tuple[int, Logprob | None]], pieces: Sequence[str], top: int, start: int = 0
) -> dict[str, Any]:
    """`logprobs` of a text completion: tokens with their log-probabilities, None for the first of a prompt.

    `pieces` are the texts of the tokens, the first of which begins at offset `start`."""
    offsets = [*accumulate(map(len, pieces), initial=start)]
    return {
        "tokens": [written(text, token) for token, _ in entries],
        "token_logprobs": [own and max(own.logprob, LOWEST) for _, own in entries],
        "top_logprobs": [
            own and {written(text, t): max(value, LOWEST) for t, value in own.top_logprobs[:top]} for _, own in entries
        ],
        "text_offset": offsets[: len(entries)],
    }


def vllm_prompt_logprobs(text: TextCodec, entries: Sequence[Logprob | None], top: int) -> list[Any]:
    """vLLM's `prompt_logprobs`: by token id, the token itself and the likeliest. `rank` is None beyond these."""
    lines: list[Any] = []
    for own in entries:
        if own is None:
            lines.append(None)
            continue
        likeliest = own.top_logprobs[:top]
        ranks = {token: rank for rank, (token, _) in enumerate(own.top_logprobs, start=1)}
        pairs = {own.token_id: own.logprob, **dict(likeliest)}
        lines.append(
            {
                str(token): {
                    "logprob": max(value, LOWEST),
                    "rank": ranks.get(token),
                    "decoded_token": written(text, token),
                }
                for token, value in pairs.items()
            }
        )
    return lines


def prompt_pieces(text: TextCodec, prompt: Sequence[int], echo: str) -> list[str]:
    """The part of the echoed prompt that belongs to each of its tokens. Special tokens are text where the prompt
    spells them."""
    decoder, offset, pieces = text.stream(), 0, list[str]()
    for token in prompt:
        piece = decoder.push((token,))
        if token in text.skipped and echo.startswith(text.token(token), offset):
            piece = text.token(token)
        pieces.append(piece)
        offset += len(piece)
    return pieces


def _entry(text: TextCodec, token: int, logprob: float) -> dict[str, Any]:
    spelling = written(text, token)
    return {"token": spelling, "logprob": max(logprob, LOWEST), "bytes": list(spelling.encode())}


def written(text: TextCodec, token: int) -> str:
    return text.decode([token]) or text.token(token)
