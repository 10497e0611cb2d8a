"""Rows of a padded batch as plain lists of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from slipstream.core.array_types import Int, Tensor


@dataclass(frozen=True, eq=False)
class PromptRow:
    """One row, with and without its padding."""

    ids: Int[Tensor, " length"]
    tokens: list[int]

    @property
    def padded(self) -> bool:
        return len(self.tokens) < len(self.ids)


def read_prompts(input_ids: Int[Tensor, "batch length"], mask: Any, positions: Any) -> list[PromptRow]:
    """Split a batch into rows. Padding may stand before or after a row's text, not inside it."""
    seen = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask != 0
    if seen.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask is {tuple(seen.shape)} and input_ids {tuple(input_ids.shape)}; they must agree"
        )
    prompts = []
    for r, (ids, own) in enumerate(zip(input_ids, seen, strict=True)):
        places = own.nonzero()[:, 0].tolist()
        if not places:
            raise ValueError(f"attention_mask hides the whole of row {r}; give at least one token")
        if places[-1] - places[0] + 1 != len(places):
            raise ValueError(f"attention_mask has a hole in row {r}; padding may stand only before or after the text")
        _check_positions(positions, r, places)
        prompts.append(PromptRow(ids, ids[places].tolist()))
    return prompts


def _check_positions(positions: Any, row: int, places: list[int]) -> None:
    """Refuse positions other than those that transformers makes: the row's own tokens counted from 0."""
    if positions is None:
        return
    own = positions[row if len(positions) > 1 else 0]
    if own.ndim != 1 or own[places].tolist() != list(range(len(places))):
        raise ValueError(f"position_ids of row {row} do not count its tokens from 0, which is refused; leave them out")
