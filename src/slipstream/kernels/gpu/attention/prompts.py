"""Attention of long prompts, by PyTorch's own kernels.

A pass over many tokens is bound by arithmetic, not by reading the cache, and the libraries' kernels for this case are
the best there are. They need to know each prompt's row and length on the host, so only passes that are not captured use
them. Their sums depend on the library, so the invariant mode does not use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from slipstream.kernels.gpu.attention.shapes import AttentionHeads

LONG = 256  # tokens of one row in a pass: fewer are left to the kernels that take all rows at once


@dataclass(frozen=True)
class PromptSlice:
    """Tokens `first` to `first + count` of a pass: a stretch of one row's text that begins at place `start`."""

    row: int
    first: int
    count: int
    start: int


def attend_prompts(
    prompts: Sequence[PromptSlice], query: Tensor, keys: Tensor, values: Tensor, out: Tensor, heads: AttentionHeads
) -> None:
    """Causal attention of each prompt over the row's cache, whose entries are already written.

    `query` [tokens, heads, dim], `out` [tokens, heads * dim]."""
    for prompt in prompts:
        tokens, end = slice(prompt.first, prompt.first + prompt.count), prompt.start + prompt.count
        asked = query[tokens].transpose(0, 1)[None]
        attended = _causal(asked, _entries(keys, prompt.row, end), _entries(values, prompt.row, end), heads)
        out[tokens].view(prompt.count, heads.heads, heads.dim).copy_(attended[0].transpose(0, 1))


def _entries(held: Tensor, row: int, end: int) -> Tensor:
    """The first entries of a row, [1, heads, end, dim]; rows may overlap."""
    shape = 1, held.shape[1], end, held.shape[3]
    return held.as_strided(shape, held.stride(), held.storage_offset() + row * held.stride(0))


def _causal(query: Tensor, keys: Tensor, values: Tensor, heads: AttentionHeads) -> Tensor:
    """The last query attends to all keys, each one before it to one key less."""
    count, length = query.shape[2], keys.shape[2]
    grouped = heads.group > 1
    if count == length:
        return scaled_dot_product_attention(query, keys, values, is_causal=True, scale=heads.scale, enable_gqa=grouped)
    if query.is_cuda and query.element_size() == 2:
        flash = torch.ops.aten._scaled_dot_product_flash_attention  # aligns the causal mask to the last query
        result: Tensor = flash(query, keys, values, 0.0, True, False, scale=heads.scale)[0]
        return result
    place = torch.arange(length, device=query.device)
    mask = place[None, :] <= place[length - count :, None]
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=heads.scale, enable_gqa=grouped)
