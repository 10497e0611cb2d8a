"""Cosines and sines of the rotary embedding, by position."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import next_power_of_two

PROBE = 5  # tokens
FIRST_POSITIONS = 256  # in the first table
FAR = 1 << 24  # a position that no text reaches


class RotaryTable:
    """Cosines and sines of positions by a model's own rotary embedding.

    If they depend on the position only, they are computed once and looked up, because the module takes ten torch calls.
    Some modules depend on the longest position of a pass. Those are called every time.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._cos, self._sin = torch.empty(2, 0, 0)
        self.fixed = self._is_fixed()

    def __call__(
        self, state: Float[Tensor, "tokens hidden"], position: Int[Tensor, " tokens"], below: int
    ) -> tuple[Tensor, Tensor]:
        """The cosines and sines of `position`, all of which are below `below`."""
        table = self.table(below)
        if table is None:
            cos, sin = self._module(state[None], position[None])
            return cos[0].contiguous(), sin[0].contiguous()
        cos, sin = table
        return cos.index_select(0, position), sin.index_select(0, position)

    def table(self, below: int) -> tuple[Float[Tensor, "positions rotated"], Float[Tensor, "positions rotated"]] | None:
        """The cosines and sines of all positions below `below`, and of more; None if there is no table."""
        if not self.fixed:
            return None
        if len(self._cos) < below:
            self._cos, self._sin = self._of(torch.arange(next_power_of_two(max(below, FIRST_POSITIONS))))
        return self._cos, self._sin

    def _of(self, position: Int[Tensor, " n"]) -> Float[Tensor, "2 n rotated"]:
        cos, sin = self._module(torch.empty(1, len(position), 1), position[None])
        return torch.stack([cos[0], sin[0]])

    def _is_fixed(self) -> bool:
        """Whether the angles of a position do not depend on the other positions of the call."""
        near = torch.arange(PROBE)
        with torch.inference_mode():
            alone, with_far = self._of(near), self._of(torch.cat([near, torch.tensor([FAR])]))[:, :PROBE]
            return torch.equal(alone, with_far) and torch.equal(alone, self._of(near))
