"""The table of a pass: the position, place and visibility of each of its tokens, which is copied in before it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.kernels.gpu.attention import LONG, WORDS, Layout, PromptSlice
from slipstream.models.cache.packing import RowSlice

COLUMNS = 7 + WORDS + 1  # of the table: layout of tokens and chunks, visibility bits, token ids


def layout_of(
    table: Int[Tensor, "columns tokens"], chunk: int, chunks: int, prompts: Sequence[PromptSlice] = ()
) -> Layout:
    """The layout that a table describes, with up to `chunks` chunks of up to `chunk` tokens."""
    position, row, place, limit, base, first, count = table[:7]
    bits = table[7 : 7 + WORDS].view(-1, WORDS)
    return Layout(position, row, place, limit, base, bits, first[:chunks], count[:chunks], chunk, prompts)


def prompt_slices(pieces: Sequence[RowSlice]) -> list[PromptSlice]:
    """The pieces that are long stretches of text."""
    prompts, offset = [], 0
    for piece in pieces:
        if len(piece) >= LONG and not piece.line.branched:
            prompts.append(PromptSlice(piece.line.row, offset, len(piece), piece.line.start + piece.skip))
        offset += len(piece)
    return prompts


def table_of(
    pieces: Sequence[RowSlice], size: int, chunk: int, sliced: Collection[int] = ()
) -> tuple[Int[Tensor, "columns size"], int]:
    """The position, place and visibility of each packed entry, on the host, and the number of chunks.

    Padding entries have place -1. Pieces that begin at an entry in `sliced` are in no chunk."""
    numbers, lines = np.zeros((COLUMNS, size), np.int64), [piece.line for piece in pieces]
    table = torch.from_numpy(numbers)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(sizes)
    begins, total = ends - sizes, int(ends[-1]) if pieces else 0
    starts = np.array([line.start + piece.skip for piece, line in zip(pieces, lines, strict=True)], np.int64)
    places = np.arange(total) + np.repeat(starts - begins, sizes)
    numbers[0, :total] = numbers[2, :total] = places  # a text's positions are its places
    numbers[1, :total] = np.repeat(np.array([line.row for line in lines], np.int64), sizes)
    numbers[2, total:] = -1
    numbers[3, :total] = numbers[4, :total] = places + 1
    tokens = chain.from_iterable(line.token[piece.skip :] for piece, line in zip(pieces, lines, strict=True))
    numbers[-1, :total] = np.fromiter(tokens, np.int64, total)
    for piece, offset in zip(pieces, begins.tolist(), strict=True):
        if piece.line.branched:
            _branches(table, piece, offset)
    whole = [offset not in sliced for offset in begins.tolist()] if sliced else True
    counts = np.where(whole, -(-sizes // chunk), 0)
    chunks = int(counts.sum())
    order = np.arange(chunks) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(begins, counts) + chunk * order
    numbers[5, :chunks], numbers[6, :chunks] = first, np.minimum(chunk, np.repeat(ends, counts) - first)
    return table, chunks


def _branches(table: Int[Tensor, "columns size"], piece: RowSlice, offset: int) -> None:
    """What a node of a tree sees beyond its limit, and its position in the text."""
    line, skip, numbers = piece.line, piece.skip, table.numpy()
    here = slice(offset, offset + len(piece))
    numbers[0, here], numbers[3, here], numbers[4, here] = line.position[skip:], line.limit[skip:], line.limit[skip:]
    bits = table[7 : 7 + WORDS].view(-1, WORDS)
    for i in range(skip, len(line)):
        for place in line.seen[i]:
            word, bit = divmod(place - line.limit[i], 64)
            bits[offset + i - skip, word] |= 1 << bit if bit < 63 else -(1 << 63)
