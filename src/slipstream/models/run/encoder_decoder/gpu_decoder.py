"""A decoder with cross-attention on a GPU (Whisper): its own linear layers and norms, our attention, as CUDA graphs.

Every row has its place in two caches. Self-attention reads and writes the KV cache. Cross-attention reads a second set
of tensors of fixed size, [rows, heads, encoder positions, dim], which is filled when a row is first used. So the graph
of a pass does not depend on the audio of its rows.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import next_power_of_two
from slipstream.core.types import Request, Row
from slipstream.kernels.gpu.attention import PART, AttentionHeads, AttentionScratch, Layout, attend, put
from slipstream.kernels.gpu.decoder import Held, Watched
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import ENDLESS, KVCache
from slipstream.models.run.encoder_decoder.condition import Condition, CrossAttentionStates
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.row_table import RowTable
from slipstream.models.run.support_check import PROBE

SLOTS = 4  # rows that the first cross-attention tensors have room for
RUNS = 3  # of the comparison: uncaptured, captured, replayed
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}  # of the logits, relative to their norm
ROUNDING = 1.5  # times the deviation of the model's own modules, which round as often


class GpuCrossDecoder(GpuPasses):
    """The decoder's passes. `rows` are the open rows whose conditions `states` has encoded."""

    def __init__(self, model: Any, rows: RowTable, states: CrossAttentionStates) -> None:
        super().__init__()
        decoder, config = model.get_decoder(), model.config
        heads, size = config.decoder_attention_heads, config.d_model
        self.blocks = list(decoder.layers)
        self.qkv = [_joined(block.self_attn) for block in self.blocks]
        self._norm, self._head = decoder.layer_norm, model.get_output_embeddings()
        self._tokens, self._places, self._scale = (
            decoder.embed_tokens,
            decoder.embed_positions.weight,
            decoder.embed_scale,
        )
        self.heads = AttentionHeads(heads, heads, size // heads, self.blocks[0].self_attn.scaling)
        self.layers, self.vocab, self.positions = len(self.blocks), config.vocab_size, config.max_source_positions
        self.like = self._places.new_empty(1, size)
        entry = self.like.new_empty(1, heads, 1, size // heads)
        self.entries = [(entry, entry)] * self.layers
        self.row_bytes = 2 * self.layers * self.positions * self.like.nbytes
        self.cross: Tensor | None = None  # keys and values of each layer in turns, by slot
        self.slot_of: Tensor | None = None  # slot of the row that begins at a place of the cache
        self._rows, self._states = rows, states
        self._slots: dict[Row, tuple[int, int]] = {}  # slot and first place of each open row
        self._loaded = weakref.WeakValueDictionary[int, Condition]()  # by slot

    def passing(self, tokens: int, parts: int) -> CrossPass:
        return CrossPass(self, tokens, parts)

    def embed(self, token: Int[Tensor, " tokens"], position: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens hidden"]:
        embedded: Tensor = self._tokens(token)
        if self._scale != 1:
            embedded = embedded * self._scale
        placed: Tensor = embedded + self._places.index_select(0, position)
        return placed

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        logits: Tensor = self._head(self._norm(hidden))
        return logits

    def held(self, cache: KVCache) -> list[tuple[Tensor, Tensor]]:
        slots = 0 if self.cross is None else self.cross.shape[1]
        if slots < len(self._rows):
            shape = self.heads.heads, self.positions, self.heads.dim
            self.cross = None  # the states of all rows are loaded again
            self.cross = self.like.new_zeros(2 * self.layers, max(SLOTS, next_power_of_two(len(self._rows))), *shape)
            self._loaded.clear()
            cache.version += 1  # graphs hold the addresses of both
        before = self._held
        layers = super().held(cache)
        if self._held is not before:
            self._slots.clear()
            self.slot_of = torch.zeros(cache.places, dtype=torch.long, device=self.like.device)
        for gone in self._slots.keys() - self._rows.states.keys():
            del self._slots[gone]
        for row, state in self._rows.states.items():
            if self._slots.get(row, (0, -1))[1] != state.index:
                self._place(row, state.index)
        return layers

    def _place(self, row: Row, place: int) -> None:
        """Note where a row begins, and give it a slot with the states of its condition if it has none."""
        assert self.cross is not None, "the tensors are made with the cache"
        assert self.slot_of is not None, "the tensors are made with the cache"
        condition, slot = row.request.condition, self._slots.get(row, (None, 0))[0]
        if slot is None:
            taken = {slot for slot, _ in self._slots.values()}
            free = [slot for slot in range(self.cross.shape[1]) if slot not in taken]
            slot = next((slot for slot in free if self._loaded.get(slot) is condition), free[0])
            if self._loaded.get(slot) is not condition:
                self.cross[:, slot].copy_(self._states.stacked(condition))
                self._loaded[slot] = condition
        self._slots[row] = slot, place
        self.slot_of[place] = slot

    def cross_states(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots for cross-attention."""
        assert self.cross is not None, "the tensors are made with the cache"
        return self.cross[2 * layer], self.cross[2 * layer + 1]


class CrossPass:
    """The buffers of a pass over a fixed number of tokens."""

    def __init__(self, owner: GpuCrossDecoder, tokens: int, parts: int) -> None:
        self._owner = owner
        self.hidden = owner.like.new_zeros(tokens, owner.like.shape[1])
        self._own = AttentionScratch.of(tokens, parts, owner.heads, owner.like)
        self._cross = AttentionScratch.of(tokens, -(-owner.positions // PART), owner.heads, owner.like)
        self._attended = torch.zeros_like(self.hidden)  # padding tokens are never written, and stay finite
        self._limit = torch.full((tokens,), owner.positions, dtype=torch.long, device=self.hidden.device)
        self._last, self._none = self._limit - 1, torch.full_like(self._limit, -1)

    def run(
        self,
        token: Tensor | None,
        layout: Layout,
        held: Held,
        span: tuple[int, int],
        watched: Watched,
        tree: bool,
        out: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        owner = self._owner
        hidden = self.hidden if token is None else owner.embed(token, layout.position)
        # every token sees all positions of the encoder; padding tokens see none
        assert owner.slot_of is not None, "the tensors are made with the cache"
        last = torch.where(layout.place >= 0, self._last, self._none)
        audio = replace(layout, row=owner.slot_of[layout.row], place=last, limit=self._limit)
        for index in range(*span):
            hidden = self._layer(index, hidden, layout, audio, held[index], tree)
            if index in watched:
                watched[index](hidden)
        if out is not None:
            out.copy_(owner.logits(hidden if kept is None else hidden.index_select(0, kept)))

    def _layer(
        self, index: int, hidden: Tensor, layout: Layout, audio: Layout, held: tuple[Tensor, Tensor], tree: bool
    ) -> Float[Tensor, "tokens hidden"]:
        layer = self._owner.blocks[index]
        own, cross = layer.self_attn, layer.encoder_attn
        joined = functional.linear(layer.self_attn_layer_norm(hidden), *self._owner.qkv[index])
        query, key, value = joined.chunk(3, dim=1)
        put(self._split(key), self._split(value), layout, *held)
        hidden = hidden + own.out_proj(self._attend(query, layout, held, self._own, tree))
        query = cross.q_proj(layer.encoder_attn_layer_norm(hidden))
        hidden = hidden + cross.out_proj(
            self._attend(query, audio, self._owner.cross_states(index), self._cross, False)
        )
        inner = layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden)))
        result: Tensor = hidden + layer.fc2(inner)
        return result

    def _split(self, flat: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "heads tokens dim"]:
        return flat.view(len(flat), self._owner.heads.heads, -1).transpose(0, 1)

    def _attend(
        self, query: Tensor, layout: Layout, held: tuple[Tensor, Tensor], space: AttentionScratch, tree: bool
    ) -> Float[Tensor, "tokens hidden"]:
        space = replace(space, query=query.contiguous())
        attend(layout, *held, space, self._attended, self._owner.heads, tree)
        return self._attended


def _joined(attention: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries, keys and values as one product. A part without a bias has zeros."""
    weights, biases = list[Tensor](), list[Tensor]()
    for part in (attention.q_proj, attention.k_proj, attention.v_proj):
        weight: Tensor = part.weight.detach()
        weights.append(weight)
        biases.append(weight.new_zeros(len(weight)) if part.bias is None else part.bias.detach())
    return torch.cat(weights), torch.cat(biases)


@torch.inference_mode()
def cross_decoder(model: Any, rows: RowTable, states: CrossAttentionStates) -> GpuCrossDecoder | None:
    """The captured passes of a decoder; None, with a warning, where they cannot be captured or their numbers differ."""
    try:
        passes, modules = _deviations(model, states)
        if passes <= max(TOLERANCE[model.dtype], ROUNDING * modules):
            return GpuCrossDecoder(model, rows, states)
        reason = f"its logits differ by {passes:.1e}, those of its own modules by {modules:.1e}"
    except Exception as failure:  # whatever a capture raises, the modules still run
        reason = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
    warnings.warn(f"the decoder runs without CUDA graphs ({reason})", RuntimeWarning, stacklevel=2)
    return None


def _deviations(model: Any, states: CrossAttentionStates) -> tuple[float, float]:
    """How far the logits of a few tokens are from those in float32, relative to their norm: those of the passes, and of
    the model's own modules. In half precision both round, and rounding adds up over the layers."""
    config, device = model.config, model.device
    generator = torch.Generator().manual_seed(0)
    shape = config.max_source_positions, config.d_model
    encoded = torch.randn(shape, generator=generator).to(device, model.dtype)
    tokens = [(i * 977 + 13) % config.vocab_size for i in range(PROBE)]
    condition = states.given(torch.zeros(config.num_mel_bins, 1), encoded)
    rows, row = RowTable(KVCache(), ENDLESS), Row(Request(tokens, condition=condition))
    rows.open(row, ())
    passes = GpuCrossDecoder(model, rows, states)
    keep = torch.arange(PROBE, device=device)
    for _ in range(RUNS):
        pieces: Sequence[RowSlice] = [RowSlice(RowEntries.of(rows.states[row].index, 0, tokens))]
        logits, _, _ = passes.forward(rows.cache, pieces, (0, passes.layers), None, (), keep)
    assert logits is not None
    modules, exact = (_module_logits(one, encoded, tokens) for one in (model, copy.deepcopy(model).float()))
    return _distance(logits, exact), _distance(modules, exact)


def _module_logits(model: Any, encoded: Tensor, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([tokens], device=encoded.device)
    states = encoded[None].to(model.dtype)
    logits: Tensor = model(encoder_outputs=(states,), decoder_input_ids=ids, use_cache=False).logits[0]
    return logits.float()


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())
