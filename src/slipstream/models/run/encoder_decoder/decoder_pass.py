"""One forward pass of a decoder with cross-attention over packed entries (Whisper).

On a GPU the pass is a CUDA graph (`gpu_decoder`). Otherwise:

The linear layers, norms and embeddings are those of transformers' modules; self-attention reads and writes the KV cache
as in any other model, and cross-attention reads the states of each row's own condition. On a CPU in float32 both run by
the kernel that computes each token by itself, so a row's numbers depend on that row alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.cpu.attention import AttentionKernel
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.cache.packing import RowSlice
from slipstream.models.run.attention import AttentionPass, view
from slipstream.models.run.encoder_decoder.condition import Condition, CrossAttentionStates
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.forward_pass import LayerPass
from slipstream.models.run.invariant import apply_by_steps, invariant_attention
from slipstream.models.run.row_table import RowTable

if TYPE_CHECKING:
    from slipstream.models.run.gpu.passes import GpuPasses


class CrossDecoderPass(LayerPass):
    """Runs decoder layers over packed entries. Keys, values and declared features are written to the cache."""

    def __init__(
        self,
        model: Any,
        rows: RowTable,
        features: FeatureStore,
        states: CrossAttentionStates,
        invariant: bool,
        captured: bool,
    ) -> None:
        """`captured`: passes run as CUDA graphs where that works."""
        decoder, config = model.get_decoder(), model.config
        self.features, self.all_layers = features, (0, len(decoder.layers))
        self._rows, self._states, self._device = rows, states, torch.device(model.device)
        self._layers, self._norm, self._head = list(decoder.layers), decoder.layer_norm, model.get_output_embeddings()
        self._tokens, self._positions = decoder.embed_tokens, decoder.embed_positions.weight
        self._heads, self._scale = config.decoder_attention_heads, float(decoder.embed_scale)
        self._windows: dict[int, int | None] = dict.fromkeys(range(len(decoder.layers)))
        self._kernel: AttentionKernel | None = invariant_attention(model) if invariant else None
        activation = self._layers[0].activation_fn
        self._activation = partial(apply_by_steps, activation) if invariant else activation
        self._captured = _captured_passes(model, rows, states) if captured and not invariant else None
        self.decoder = self._captured

    def run(
        self,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        given: Float[Tensor, "tokens hidden"] | None,
        watched: Sequence[int] = (),
        keep: Tensor | None = None,
        skipped: SkippedBlocks | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        if skipped is not None:
            raise ValueError("blocks of an encoder-decoder cannot be skipped; use early_exit or a draft model")
        if self._captured is not None and self._captured.supports(pieces):
            try:
                return self._run_captured(self._captured, pieces, span, given, watched, keep)
            except Exception as error:
                warnings.warn(f"the decoder runs without CUDA graphs now ({error})", RuntimeWarning, stacklevel=2)
                self._captured = self.decoder = None
        context = view(self._rows.cache, self._windows, pieces, self._device, self._kernel)
        owners = self._owners(pieces)
        hidden = self._embed(pieces) if given is None else given
        outputs: dict[int, Tensor] = {}
        for index in range(*span):
            hidden = self._layer(index, hidden, context, owners)
            if index in watched:
                outputs[index] = hidden
        for layer in outputs.keys() & set(self.features.layers):
            context.store_output(layer, outputs[layer])
        return (None if keep is None else self.logits(hidden[keep])), outputs

    def _run_captured(
        self,
        decoder: GpuPasses,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        given: Tensor | None,
        watched: Sequence[int],
        keep: Tensor | None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        logits, outputs, where = decoder.forward(self._rows.cache, pieces, span, given, watched, keep)
        for layer in outputs.keys() & set(self.features.layers):
            self.features.write(layer, outputs[layer], pieces, where)
        return logits, outputs

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        logits: Tensor = self._head(self._norm(hidden))
        return logits

    def _owners(self, pieces: Sequence[RowSlice]) -> list[tuple[Condition, int]]:
        """The condition of each piece, and its number of entries."""
        conditions = {state.index: row.request.condition for row, state in self._rows.states.items()}
        return [(conditions[piece.line.row], len(piece)) for piece in pieces]

    def _embed(self, pieces: Sequence[RowSlice]) -> Float[Tensor, "tokens hidden"]:
        token = [token for piece in pieces for token in piece.line.token[piece.skip :]]
        position = [place for piece in pieces for place in piece.line.position[piece.skip :]]
        ids, places = torch.tensor([token, position], device=self._device)
        embedded: Tensor = self._tokens(ids) * self._scale + self._positions[places]
        return embedded

    def _layer(
        self, index: int, hidden: Tensor, context: AttentionPass, owners: Sequence[tuple[Condition, int]]
    ) -> Float[Tensor, "tokens hidden"]:
        layer = self._layers[index]
        own, cross = layer.self_attn, layer.encoder_attn
        normed = layer.self_attn_layer_norm(hidden)
        query, key, value = (self._split(part(normed)) for part in (own.q_proj, own.k_proj, own.v_proj))
        attended = context.attend(index, query, key, value, own.scaling, None, None)
        hidden = hidden + own.out_proj(attended[0].flatten(1))
        query = cross.q_proj(layer.encoder_attn_layer_norm(hidden)).view(len(hidden), self._heads, -1)
        hidden = hidden + cross.out_proj(self._cross(index, query, cross.scaling, owners).flatten(1))
        inner = self._activation(layer.fc1(layer.final_layer_norm(hidden)))
        result: Tensor = hidden + layer.fc2(inner)
        return result

    def _split(self, flat: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "1 heads tokens dim"]:
        return flat.view(len(flat), self._heads, -1).transpose(0, 1)[None]

    def _cross(
        self,
        index: int,
        query: Float[Tensor, "tokens heads dim"],
        scale: float,
        owners: Sequence[tuple[Condition, int]],
    ) -> Float[Tensor, "tokens heads dim"]:
        """Attention of each row's tokens to the states of its own condition."""
        parts, start = list[Tensor](), 0
        for condition, count in owners:
            keys, values = self._states.of(condition, index)
            part = query[start : start + count]
            start += count
            if self._kernel is not None:
                parts.append(self._kernel.attend(part, keys, values, None, torch.zeros(count, dtype=torch.long), scale))
                continue
            attended = functional.scaled_dot_product_attention(part.transpose(0, 1)[None], keys, values, scale=scale)
            parts.append(attended[0].transpose(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _captured_passes(model: Any, rows: RowTable, states: CrossAttentionStates) -> GpuPasses | None:
    try:
        from slipstream.models.run.encoder_decoder.gpu_decoder import cross_decoder
    except ImportError:  # Triton is not installed
        return None
    return cross_decoder(model, rows, states)
