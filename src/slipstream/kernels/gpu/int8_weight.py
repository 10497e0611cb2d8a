"""A weight in int8: half the bytes to read in a pass over few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """weight[o, i] = number[o, i] * scale[o]."""

    number: Tensor  # int8 or float8_e4m3fn, [out, in]
    scale: Tensor  # float32 [out]
    like: Tensor  # empty, of the type that is computed with
    full: Tensor | None = None  # the same numbers in that type, for passes over many tokens

    def __len__(self) -> int:
        return len(self.number)

    @property
    def shape(self) -> torch.Size:
        return self.number.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        return self.number.device

    def new_empty(self, *shape: int) -> Tensor:
        return self.like.new_empty(*shape)

    def wide(self) -> Tensor:
        return (self.number.float() * self.scale[:, None]).to(self.dtype) if self.full is None else self.full


Weight = Tensor | Int8Weight


def fused(parts: Sequence[Int8Weight]) -> Int8Weight:
    number, scale = torch.cat([p.number for p in parts]), torch.cat([p.scale for p in parts])
    full = None if any(p.full is None for p in parts) else torch.cat([p.wide() for p in parts])
    return Int8Weight(number, scale, parts[0].like, full)
