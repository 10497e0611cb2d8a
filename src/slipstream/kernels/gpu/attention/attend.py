"""Attention of the tokens of a pass over the KV cache, by the kernels that suit its size."""

from __future__ import annotations

from torch import Tensor

from slipstream.kernels.gpu.attention.parts import attend_parts
from slipstream.kernels.gpu.attention.prompts import attend_prompts
from slipstream.kernels.gpu.attention.shapes import PLAIN, AttentionHeads, AttentionOptions, AttentionScratch, Layout
from slipstream.kernels.gpu.attention.splits import attend_shares


def attend(
    layout: Layout,
    keys: Tensor,
    values: Tensor,
    space: AttentionScratch,
    out: Tensor,
    heads: AttentionHeads,
    tree: bool,
    options: AttentionOptions = PLAIN,
    surveyed: bool = False,
) -> None:
    """`surveyed`: `survey` has looked at this layout."""
    run = attend_shares if space.split else attend_parts
    run(layout, keys, values, space, out, heads, tree, options, surveyed)
    if layout.prompts:
        assert options == PLAIN, "prompts of layers with options are not sliced"
        attend_prompts(layout.prompts, space.query, keys, values, out, heads)
