"""The table of a pass: the position, place and visibility of each of its tokens, which is copied in before it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

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
    table = torch.zeros(COLUMNS, size, dtype=torch.long)
    numbers = table.numpy()
    first, count, words, offset = list[int](), list[int](), list[tuple[int, int, int]](), 0
    for piece in pieces:
        line, skip = piece.line, piece.skip
        here = slice(offset, offset + len(piece))
        numbers[0, here], numbers[1, here] = _array(line.position[skip:]), line.row
        numbers[2, here] = np.arange(line.start + skip, line.start + len(line))
        numbers[3, here] = numbers[4, here] = _array(line.limit[skip:])
        numbers[-1, here] = line.token[skip:]
        for i in range(skip, len(line)) if line.branched else ():
            for place in line.seen[i]:
                word, bit = divmod(place - line.limit[i], 64)
                words.append((offset + i - skip, word, bit))
        starts = range(offset, offset + (0 if offset in sliced else len(piece)), chunk)
        first += starts
        count += [min(chunk, offset + len(piece) - start) for start in starts]
        offset += len(piece)
    table[2, offset:] = -1
    table[5:7, : len(first)] = torch.tensor([first, count])
    bits = table[7 : 7 + WORDS].view(-1, WORDS)
    for token, word, bit in words:
        bits[token, word] |= 1 << bit if bit < 63 else -(1 << 63)
    return table, len(first)


def _array(values: Sequence[int]) -> NDArray[np.int64]:
    return np.arange(values.start, values.stop) if isinstance(values, range) else np.array(values)
