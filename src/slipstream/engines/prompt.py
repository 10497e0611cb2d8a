"""Prompts of any legal type, and their token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.checks import integers, listed, shown
from slipstream.core.types import Processor
from slipstream.models.speech.audio import Audio
from slipstream.models.text.codec import TextCodec


@dataclass(frozen=True, eq=False)
class ConditionedPrompt:
    """Token ids with what the output depends on besides them (`Request.condition`), and the rules of the output."""

    token_ids: Sequence[int]
    condition: Any
    processor: Processor | None = None


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | Audio | ConditionedPrompt  # text, token ids, a chat, audio

LEGAL = 'a prompt is a string, a list of token ids, or a list of messages such as [{"role": "user", "content": "Hi"}]'


def split_prompts(prompts: Any) -> list[Any]:
    """One prompt or several, as a list. The rows of a matrix of token ids are several prompts."""
    prompts = listed(prompts)
    if _several(prompts) and prompts and all(isinstance(prompt, Audio | ConditionedPrompt) for prompt in prompts):
        return list(prompts)
    if not _several(prompts):
        return [prompts]
    if prompts and not isinstance(listed(prompts[0]), str | bytes | bytearray) and not _several(listed(prompts[0])):
        return [prompts]  # token ids or messages of one prompt, or an illegal value, which `encode` refuses
    return list(prompts)


def encode(prompt: Any, raw: bool, text: TextCodec, context: int | None = None) -> list[int]:
    """The token ids of a prompt; ValueError where it is none, or where it is far too long for `context` tokens."""
    return encode_all([prompt], raw, text, context)[0]


def encode_all(prompts: Sequence[Any], raw: bool, text: TextCodec, context: int | None = None) -> list[list[int]]:
    """The token ids of several prompts, as `encode` gives them. Their texts are tokenized together."""
    read = [_token_ids(prompt) for prompt in prompts]
    texts = [listed(prompt) for prompt, ids in zip(prompts, read, strict=True) if ids is None]
    encoded = iter(text.encode_all(texts, raw, context))
    return [next(encoded) if ids is None else ids for ids in read]


def _token_ids(prompt: Any) -> list[int] | None:
    """The ids of a prompt that is a list of them; None for a text or a chat."""
    if isinstance(prompt, ConditionedPrompt):
        return list(prompt.token_ids)
    prompt = listed(prompt)
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, bytes | bytearray):
        raise ValueError(f"the prompt is {shown(prompt)}; decode bytes to a string first")
    if not _several(prompt):
        raise ValueError(f"the prompt is {shown(prompt)}; {LEGAL}")
    if prompt and all(isinstance(message, Mapping) for message in prompt):
        return None
    try:
        return integers("prompt", prompt)
    except ValueError as error:
        raise ValueError(f"the prompt is {shown(prompt)}; {LEGAL}") from error


def _several(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray | memoryview)
