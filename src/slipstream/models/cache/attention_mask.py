"""The attention mask of a pass: causal within a row, ancestors within a tree, nothing across rows, within the window.

The cache is laid out by place, while windows count positions of the text. The two differ only for nodes of a tree:
siblings have the same position and different places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slipstream.core.array_types import Bool, Int, Tensor
from slipstream.models.cache.packing import RowSlice


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """Which places each packed token sees: those below its limit, and the extra ones of a tree (see `packing`)."""

    pieces: Sequence[RowSlice]
    device: torch.device

    def visible(self, window: int | None, used: int) -> Bool[Tensor, "tokens used"] | None:
        """[tokens, used]; None where every token sees every place."""
        limit = [n for piece in self.pieces for n in piece.line.limit[piece.skip :]]
        if window is None and min(limit) >= used:
            return None
        lists = [places for piece in self.pieces for places in piece.line.seen[piece.skip :]]
        if window is None and self.device.type == "cpu" and not any(lists):
            # numpy is faster than torch for a few numbers
            return torch.from_numpy(np.arange(used) < np.array(limit)[:, None])
        places = torch.arange(used, device=self.device)
        seen = places < ints(limit, self.device)[:, None]
        pairs = [(token, place) for token, extra in enumerate(lists) for place in extra]
        if pairs:
            token, place = ints(pairs, self.device).T
            seen[token, place] = True
        if window is not None:
            position = [n for piece in self.pieces for n in piece.line.position[piece.skip :]]
            seen &= ints(position, self.device)[:, None] - self.text(places, bool(pairs)) < window
        return seen

    def text(self, places: Int[Tensor, " used"], branching: bool) -> Int[Tensor, "*tokens used"]:
        """The text position of the entry at each place: the place itself, except for nodes of a tree."""
        if not branching:
            return places
        table = places.repeat(len(self.pieces), 1)
        for r, piece in enumerate(self.pieces):
            start, position = piece.line.start, piece.line.position
            table[r, start : start + len(position)] = ints(position, self.device)
        owner = [r for r, piece in enumerate(self.pieces) for _ in range(len(piece))]
        return table[ints(owner, self.device)]


def ints(values: Sequence[Any], device: torch.device) -> Int[Tensor, " ..."]:
    return torch.tensor(values, dtype=torch.long, device=device)
