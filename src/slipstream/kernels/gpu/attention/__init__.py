"""Attention of packed tokens over the KV cache of many rows, on a GPU.

A token attends to the places below its `limit`. In a tree it also attends to the places from `base` on whose bits are
set. A sliding window limits how far back it attends. Below the limit, a place is a position of the text; no tree is
deeper than a window.
"""

from slipstream.kernels.gpu.attention.attend import attend
from slipstream.kernels.gpu.attention.parts import survey
from slipstream.kernels.gpu.attention.prompts import LONG, PromptSlice
from slipstream.kernels.gpu.attention.rotary import put, turn
from slipstream.kernels.gpu.attention.shapes import (
    PART,
    PLAIN,
    WORDS,
    AttentionHeads,
    AttentionOptions,
    AttentionScratch,
    Layout,
)

__all__ = [
    "LONG",
    "PART",
    "PLAIN",
    "WORDS",
    "AttentionHeads",
    "AttentionOptions",
    "AttentionScratch",
    "Layout",
    "PromptSlice",
    "attend",
    "put",
    "survey",
    "turn",
]
