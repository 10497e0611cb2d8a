"""Attention over the KV cache in float32, each token by itself. Its reference is `reference` below.

Libraries split the sum over cache places by the shape of the batch. So the rounding of a token's result changes with
the other rows, the number of drafted tokens and the size of the cache. The kernel, `attention.cpp`, sums over the
visible places of a token in the order of the text, so its result depends on nothing else.
"""

from __future__ import annotations

import ctypes
import functools
import math
import random
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.compile import Unavailable, function, load
from slipstream.kernels.cpu.linear import POINTER, parallel
from slipstream.kernels.cpu.move import steps

SOURCE = Path(__file__).parent / "src" / "passes" / "attention.cpp"
SMALL = 1 << 15  # multiplications that one thread does faster than a team, which must be woken first


def reference(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None, row: Tensor, scale: float, cap: float = 0.0
) -> Tensor:
    """query [tokens, heads, dim], keys [rows, kv_heads, places, dim], values [rows, kv_heads, places, dim_v],
    seen [tokens, used] (attention mask, None: all places), row [tokens] -> [tokens, heads, dim_v].

    `cap`: logit soft-cap, 0 for none."""
    group = query.shape[1] // keys.shape[1]
    used = keys.shape[2] if seen is None else seen.shape[1]
    keys, values = (cached[row, :, :used].repeat_interleave(group, 1) for cached in (keys, values))
    scores = torch.einsum("thd,thpd->thp", query, keys) * scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None], -math.inf)
    return torch.einsum("thp,thpd->thd", scores.softmax(-1), values)


class AttentionKernel:
    """A compiled library that passed its self-check."""

    def __init__(self, path: Path) -> None:
        number, word = ctypes.c_float, ctypes.c_uint
        self._call = function(path, "slipstream_attend", *(POINTER,) * 7, number, number, word, POINTER)
        self._parallel = parallel()
        self._check()

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        seen: Tensor | None,
        row: Tensor,
        scale: float,
        cap: float = 0.0,
        used: int | None = None,
    ) -> Tensor:
        """As `reference`. Without `seen`, tokens attend to the first `used` places."""
        assert steps(keys) == steps(values), "keys and values have one layout"
        tokens, heads, dim = query.shape
        kv_heads, places = keys.shape[1:3]
        width = used or places if seen is None else seen.shape[1]
        out = torch.empty(tokens, heads, values.shape[3])
        sizes = (ctypes.c_int64 * 8)(tokens, heads, kv_heads, dim, values.shape[3], *steps(keys), width)
        query = query.contiguous()
        look = None if seen is None else seen.contiguous().data_ptr()
        threads = torch.get_num_threads() if tokens * heads * dim * width > SMALL else 1
        address = query.data_ptr(), keys.data_ptr(), values.data_ptr(), look, row.data_ptr(), out.data_ptr()
        self._call(*address, ctypes.addressof(sizes), scale, cap, threads, self._parallel)
        return out

    def _check(self) -> None:
        draws = random.Random(0)  # no torch.Generator, which imports much (`cli/light_torch.py`)
        keys, values = torch.tensor([draws.gauss() for _ in range(2 * 2 * 2 * 40 * 20)]).view(2, 2, 2, 40, 20)
        query, row = (
            torch.tensor([draws.gauss() for _ in range(5 * 6 * 20)]).view(5, 6, 20),
            torch.tensor([0, 1, 1, 0, 1]),
        )
        seen = torch.tensor([draws.random() for _ in range(5 * 33)]).view(5, 33) < 0.7
        for cap in (0.0, 3.0):
            result = self.attend(query, keys, values, seen, row, 0.3, cap)
            each = ((query[t : t + 1], keys, values, seen[t : t + 1], row[t : t + 1]) for t in range(5))
            alone = torch.cat([self.attend(*token_args, 0.3, cap) for token_args in each])
            right = torch.allclose(result, reference(query, keys, values, seen, row, 0.3, cap), atol=1e-5)
            if not right or not torch.equal(result, alone):
                raise Unavailable("it is compiled, but its results are wrong")


def kernel() -> AttentionKernel | None:
    """The kernel, or None if it is not available."""
    loaded = _loaded()
    return None if isinstance(loaded, str) else loaded


def why_not() -> str | None:
    """Why the kernel is not available, as a clause; None if it is."""
    loaded = _loaded()
    return loaded if isinstance(loaded, str) else None


@functools.cache
def _loaded() -> AttentionKernel | str:
    return load(AttentionKernel, SOURCE)
