"""What the user wrote, where transformers does not hand it on.

A callable given as `custom_generate` receives the prepared inputs, processors and criteria, and its own arguments, but
neither the streamer, the tokenizer nor an assistant, though `generate` was given them: it drops all three in
`_extract_generation_mode_kwargs`. They are read where they still stand, in the frames of the call under way. Whatever
transformers hands on by itself one day is used instead.
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from transformers import GenerationMixin

DROPPED = ("streamer", "assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask")
POPPED = ("tokenizer", "assistant_tokenizer", "past_key_values")


def asked() -> dict[str, Any]:
    """The arguments of the innermost `generate` under way that it does not hand on; nothing where there is none."""
    frame = _generating(inspect.currentframe())
    if frame is None:
        return {}
    named = frame.f_locals
    outer = frame.f_back  # `generate` is decorated: the wrapper still holds every keyword as it was given
    given = outer.f_locals.get("kwargs") if outer else None
    popped = given if isinstance(given, dict) else {}
    return {name: named.get(name) for name in DROPPED} | {name: popped.get(name) for name in POPPED}


def _generating(frame: FrameType | None) -> FrameType | None:
    code = inspect.unwrap(GenerationMixin.generate).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame
