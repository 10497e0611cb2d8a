"""Arguments of `model.generate` that transformers does not pass on to a `custom_generate` callable.

The callable receives the prepared inputs, processors, criteria and its own arguments. It does not receive the streamer,
the tokenizer or an assistant model: `_extract_generation_mode_kwargs` drops them. They are read from the stack frames
of the running call. If transformers passes one of them on, that value is used instead.
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from transformers import GenerationMixin

DROPPED = ("streamer", "assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask")
POPPED = ("tokenizer", "assistant_tokenizer", "past_key_values")


def caller_arguments() -> dict[str, Any]:
    """The dropped arguments of the innermost running `generate`; empty where there is none."""
    frame = _generate_frame(inspect.currentframe())
    if frame is None:
        return {}
    named = frame.f_locals
    outer = frame.f_back  # `generate` is decorated, and the wrapper still holds all keywords
    given = outer.f_locals.get("kwargs") if outer else None
    popped = given if isinstance(given, dict) else {}
    return {name: named.get(name) for name in DROPPED} | {name: popped.get(name) for name in POPPED}


def _generate_frame(frame: FrameType | None) -> FrameType | None:
    code = inspect.unwrap(GenerationMixin.generate).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame
