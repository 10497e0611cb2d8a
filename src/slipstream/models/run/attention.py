"""Our attention, plugged into any model through transformers' attention interface.

The model computes queries, keys and values for packed tokens as if they were one sequence, and hands them to `attend`.
An `AttentionPass` is passed along as the keyword argument `slipstream=`: it says where keys and values are written,
which rows of the cache take part, and which token may see which place. Linear layers thus see packed tokens only.
Attention sees a rectangle [rows, queries], where short rows are padded with a repeated token whose result is dropped.

Shapes: heads = kv_heads x group. A few queries are folded, [rows, kv_heads, group x queries, dim], so that the keys of
a group of heads are read once; many queries (a prompt) repeat the keys instead, which is then the smaller tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.kernels.cpu.attention import AttentionKernel
from slipstream.models.cache.attention_mask import AttentionMask, ints
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache, hidden

NAME = "slipstream"
FOLD = 32  # up to so many queries a row, grouped heads are folded into the query axis
WHOLE = torch.ones(1, 1, 1, 1, dtype=torch.bool)  # transformers passes on a 4D mask unchanged, and builds none


@dataclass(eq=False)
class AttentionPass:
    """One pass over the cache. Built once, read by every layer."""

    cache: KVCache
    windows: dict[int, int | None]  # by layer; None sees everything
    rows: Sequence[int]  # that attention reads, by their first places
    used: int  # places any row reads
    shape: tuple[int, int]  # rows, queries
    owner: Int[Tensor, " tokens"]  # row of each packed token
    places: slice | Int[Tensor, " tokens"]  # of the cache that they are written to
    spread: Int[Tensor, " rectangle"] | None  # packed token at each place of the rectangle; None: as packed
    gather: Int[Tensor, " tokens"] | None
    visibility: AttentionMask
    kernel: AttentionKernel | None = None  # computes each token by itself; None: torch's attention over the rectangle
    masks: dict[tuple[int | None, int], Tensor | None] = field(default_factory=dict)
    _index: Int[Tensor, "rows used"] | None = None  # places that are read

    def notice(self, module: nn.Module, mask: Any, others: dict[str, Any]) -> None:
        """Called with the arguments that only the probe of `support_check` uses."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: float | None, sink: Any
    ) -> Float[Tensor, "1 tokens heads dim"]:
        if self.kernel is not None:  # the kernel reads a float32 cache
            key, value = key.float(), value.float()
        keys, values = self.cache.layer(layer, key, value)
        single_row = self.shape[0] == 1
        keys[0, :, self.places], values[0, :, self.places] = key[0], value[0]
        if self.kernel is not None:
            assert sink is None, "models with sinks are refused in invariant mode"
            return self._attend_by_token(self.kernel, layer, query, keys, values, scale, cap)
        keys, values = self._read(keys), self._read(values)
        rows, queries = self.shape
        heads, group = query.shape[1], query.shape[1] // keys.shape[1]
        if not single_row:
            flat = query[0] if self.spread is None else query[0].index_select(1, self.spread)
            query = flat.view(heads, rows, queries, -1).transpose(0, 1)
        if group > 1 and queries > FOLD:
            keys, values, group = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1), 1
        mask = self.mask(self.windows[layer], group, query.dtype)
        query = query.reshape(rows, heads // group, group * queries, query.shape[-1])
        if cap is None and sink is None:
            out = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        else:
            out = explicit_attention(query, keys, values, mask, scale, cap, _column(sink, heads // group, queries))
        out = out.reshape(rows, heads, queries, out.shape[-1])
        if single_row:
            return out.transpose(1, 2)
        out = out.transpose(0, 1).flatten(1, 2)
        return (out if self.gather is None else out.index_select(1, self.gather)).transpose(0, 1)[None]

    def _attend_by_token(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float | None,
        cap: Any,
    ) -> Float[Tensor, "1 tokens heads dim"]:
        window, packed = self.windows[layer], query[0].transpose(0, 1)
        window = window if window is not None and window < self.used else None
        if (window, 0) not in self.masks:
            self.masks[window, 0] = self.visibility.visible(window, self.used)
        factor = packed.shape[-1] ** -0.5 if scale is None else scale
        seen = self.masks[window, 0]
        out = kernel.attend(packed.float(), keys, values, seen, self.owner, factor, cap or 0.0, self.used)
        return out.to(query.dtype)[None]

    def store_output(self, layer: int, state: Float[Tensor, "tokens hidden"]) -> None:
        """Store a layer's output for every packed token in the cache, at the places of its keys and values."""
        (held,) = self.cache.hold(hidden(layer), state[None, None])
        held[0, 0, self.places] = state

    def _read(self, held: Float[Tensor, "1 heads places dim"]) -> Float[Tensor, "rows heads used dim"]:
        """The first `used` entries of every row; of shorter rows also what lies behind them, which is masked.

        Rows at equal distances are a view of the cache."""
        heads, places, dim = held.shape[1:]
        first, step = self.rows[0], self.rows[1] - self.rows[0] if len(self.rows) > 1 else 0
        even = all(row == first + n * step for n, row in enumerate(self.rows))
        if even and step >= 0 and self.rows[-1] + self.used <= places:
            shape, strides = (len(self.rows), heads, self.used, dim), (step * dim, places * dim, dim, 1)
            return held.as_strided(shape, strides, held.storage_offset() + first * dim)
        if self._index is None:
            place = ints(self.rows, held.device)[:, None] + torch.arange(self.used, device=held.device)
            self._index = place.clamp(max=places - 1)
        return held[0][:, self._index].transpose(0, 1)

    def mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor | None:
        """0 if a query attends to a place, otherwise -inf, [rows, 1, group x queries, used]; None: all are visible."""
        window = window if window is not None and window < self.used else None
        if (window, group) not in self.masks:
            seen = self.visibility.visible(window, self.used)
            if seen is not None:
                seen = seen if self.spread is None else seen[self.spread]
                seen = seen.view(self.shape[0], 1, self.shape[1], -1).repeat(1, 1, group, 1)
                seen = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)
            self.masks[window, group] = seen
        return self.masks[window, group]


def explicit_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None, cap: float | None, sink: Any
) -> Tensor:
    """Attention with soft-capped scores (Gemma 2) or attention sinks (an extra score per head without a value)."""
    scores = query @ keys.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores + mask
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores.dtype).expand(*scores.shape[:-1], 1)], -1)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights if sink is None else weights[..., :-1]) @ values


def _column(sink: Any, kv_heads: int, queries: int) -> Any:
    """The sink score of each head for folded queries: [kv_heads, group x queries, 1]."""
    return None if sink is None else sink.reshape(kv_heads, -1).repeat_interleave(queries, 1)[..., None]


def view(
    cache: KVCache,
    windows: dict[int, int | None],
    pieces: Sequence[RowSlice],
    device: torch.device,
    kernel: AttentionKernel | None = None,
) -> AttentionPass:
    """Lay out one pass over the cache."""
    cache.check_room(pieces)
    used = max(piece.line.start + len(piece.line) for piece in pieces)
    mask = AttentionMask(pieces, device)
    owner = ints([piece.line.row for piece in pieces for _ in range(len(piece))], device)
    if len(pieces) == 1:
        row, start = pieces[0].line.row, pieces[0].line.start + pieces[0].skip
        places = slice(row + start, row + used)
        return AttentionPass(cache, windows, [row], used, (1, len(pieces[0])), owner, places, None, None, mask, kernel)
    queries = max(map(len, pieces))
    rows = sorted(piece.line.row for piece in pieces)
    order = {row: r for r, row in enumerate(rows)}
    spread, gather, offset = [0] * (len(rows) * queries), list[int](), 0
    for piece in pieces:
        base = order[piece.line.row] * queries
        spread[base : base + len(piece)] = range(offset, offset + len(piece))
        gather += range(base, base + len(piece))
        offset += len(piece)
    packed = gather == list(range(len(spread)))
    place = [piece.line.row + piece.line.start + i for piece in pieces for i in range(piece.skip, len(piece.line))]
    shape = (len(rows), queries)
    to_rectangle, to_packed = (None, None) if packed else (ints(spread, device), ints(gather, device))
    return AttentionPass(
        cache, windows, rows, used, shape, owner, ints(place, device), to_rectangle, to_packed, mask, kernel
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    slipstream: Any = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer."""
    if slipstream is None:
        raise RuntimeError("this model is wrapped by slipstream; set_attn_implementation('sdpa') frees it again")
    slipstream.notice(module, attention_mask, others)
    return slipstream.attend(module.layer_idx, query, key, value, scaling, softcap, s_aux), None


def tag(
    *_: Any, mask_function: Callable[..., Tensor] | None = None, local_size: int | None = None, **__: Any
) -> Tensor:
    """A stand-in for a mask that records which window the model asked for. The probe of `support_check` reads it."""
    mask = WHOLE.clone()
    mask.window = local_size  # type: ignore[attr-defined]
    mask.plain = mask_function is not None and _plain(mask_function, local_size)  # type: ignore[attr-defined]
    return mask


def _plain(sees: Callable[..., Tensor], window: int | None) -> bool:
    """Whether a mask function is causal, with or without a sliding window: no chunks, no blocks, no later tokens."""
    reach = window or 1000
    here = torch.tensor(3 * reach)
    expected = {1: False, 0: True, 1 - reach: True, -reach: window is None}
    return all(bool(sees(torch.tensor(0), torch.tensor(0), here, here + step)) == see for step, see in expected.items())


def plug_in(model: Any) -> None:
    """Put our attention into a model. Imports transformers, which takes seconds, only here."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, tag)
    model.set_attn_implementation(NAME)
