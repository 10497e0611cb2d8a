"""The sizes of attention heads, the layout of packed tokens, and scratch memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from slipstream.kernels.gpu.int8_weight import Weight

if TYPE_CHECKING:
    from slipstream.kernels.gpu.attention.prompts import PromptSlice

QUERIES, WIDEST = 16, 64  # queries of a program: the smallest tile matrix units take, and the largest that pays
MANY = 64  # tokens of a pass that has programs enough with larger tiles
PART = 128  # places of a part
WORDS = 4  # of 64 bits: nodes of a tree that one token can choose from
SHORT, PROMPT = 12, 255  # parts of a cache and tokens of a pass up to which attention goes by parts
PROGRAMS = 264  # programs of a pass over long texts, about: two for each processor of a large GPU
MOST_SPLITS = 64  # shares of a row


@dataclass(frozen=True)
class AttentionHeads:
    """The sizes of attention heads, and the tiles of the kernels."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    exact: bool = False  # one tile for any number of tokens

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def chunk(self, width: int, tokens: int, parts: int = 0, tree: bool = False) -> int:
        """Tokens of one row that a program takes, where rows have up to `width` of all tokens of a pass.

        Over a cache of many parts, reading it once is worth more than many programs."""
        if tree and self.exact:
            return 1
        few = tokens <= MANY and not self.splits(parts, tokens)
        tile = QUERIES if self.exact or few else min(WIDEST, self.tile(width))
        return max(1, tile // self.group)

    def splits(self, parts: int, tokens: int) -> bool:
        """Whether attention of so many tokens over a cache of so many parts splits rows evenly among programs."""
        return (parts > SHORT or tokens > PROMPT) and not self.exact

    def tile(self, chunk: int) -> int:
        """Queries of a program that takes so many tokens."""
        return max(QUERIES, int(triton.next_power_of_2(chunk * self.group)))


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions, rows and places of packed tokens, and chunks of up to `chunk` tokens of one row. Padding tokens have
    the place -1."""

    position: Tensor
    row: Tensor
    place: Tensor
    limit: Tensor
    base: Tensor
    bits: Tensor  # [tokens, WORDS]
    first: Tensor
    count: Tensor
    chunk: int
    prompts: Sequence[PromptSlice] = ()  # tokens that are in no chunk


@dataclass(frozen=True, eq=False)
class AttentionScratch:
    """Scratch memory: the partial results of attention before they are combined, and the reach and row of each chunk,
    which `survey` computes once for all layers. `split`: the partial results are of even shares, not of parts."""

    query: Tensor  # [tokens, heads, dim]
    weighted: Tensor  # [tokens, heads, parts, dim]
    peak: Tensor
    total: Tensor
    chunks: Tensor  # [tokens, 2]
    path: Tensor  # [tokens, nodes]: of trees whose sums are in the order of the text
    ends: Tensor
    split: bool = False

    @staticmethod
    def of(tokens: int, parts: int, heads: AttentionHeads, like: Weight) -> AttentionScratch:
        def wide(*shape: int) -> Tensor:
            return torch.empty(tokens, heads.heads, *shape, device=like.device)

        split = heads.splits(parts, tokens)
        if split:  # a chunk has at most so many tokens
            parts = splits_of(-(-tokens * heads.group // WIDEST), heads, parts)
        query = like.new_empty(tokens, heads.heads, heads.dim)
        chunks = torch.empty(tokens, 2, dtype=torch.long, device=like.device)
        weighted, peak, total = wide(parts, heads.dim), wide(parts), wide(parts)
        if split:  # tokens that are in no chunk are merged, too
            weighted.zero_(), peak.fill_(-math.inf), total.zero_()
        path = chunks.new_empty(tokens if heads.exact else 0, 64 * WORDS)
        return AttentionScratch(query, weighted, peak, total, chunks, path, chunks.new_empty(len(path)), split)


def splits_of(chunks: int, heads: AttentionHeads, most: int) -> int:
    """The number of shares that a row of a pass of so many chunks is split into."""
    return max(1, min(most, MOST_SPLITS, PROGRAMS // (chunks * heads.kv_heads)))


@dataclass(frozen=True)
class AttentionOptions:
    """What else a layer's attention does."""

    window: int | None = None  # places seen, back from a token's own
    cap: float | None = None  # scores never exceed it
    sink: Tensor | None = None  # a score for each head that takes weight and gives nothing


PLAIN = AttentionOptions()
