"""The condition of a request: input features that an encoder reads once, and the cross-attention computed from them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor

_encoders: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of all models in use, so that equal ones are shared


class Condition:
    """Input features, such as the log-mel spectrogram of 30 seconds.

    Each encoder reads them at most once, whatever the number of samples, attempts and draft models."""

    def __init__(self, features: Float[Tensor, "channels frames"]) -> None:
        self.features = features
        self.seconds = 0.0  # that encoders took
        self._encoded: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()

    def encoded(
        self, encoder: nn.Module, encode: Callable[[Tensor], Float[Tensor, "positions hidden"]]
    ) -> Float[Tensor, "positions hidden"]:
        """The output of an encoder."""
        if encoder not in self._encoded:
            started = time.perf_counter()
            states = self._encoded[encoder] = encode(self.features)
            if states.is_cuda:
                torch.cuda.synchronize(states.device)
            self.seconds += time.perf_counter() - started
        return self._encoded[encoder]


class CrossAttentionStates:
    """The keys and values of every decoder layer for the condition of each open row.

    They are computed when a row opens and kept until its condition is dropped: a roll-back does not concern them. Rows
    with the same condition share them."""

    def __init__(self, model: Any) -> None:
        config, decoder = model.config, model.get_decoder()
        self.encoder = model.model.encoder = _shared(model.get_encoder())
        self._attentions = [layer.encoder_attn for layer in decoder.layers]
        self._heads, self._dtype, self._device = config.decoder_attention_heads, model.dtype, model.device
        self._channels = config.num_mel_bins
        self._states: weakref.WeakKeyDictionary[Condition, list[tuple[Tensor, Tensor]]] = weakref.WeakKeyDictionary()

    def given(self, features: Tensor, encoded: Float[Tensor, "positions hidden"]) -> Condition:
        """An open condition whose encoder output is known."""
        condition = Condition(features)
        condition._encoded[self.encoder] = encoded
        self.open(condition)
        return condition

    def check(self, condition: Any) -> None:
        """Raise ValueError for a condition that the encoder cannot read."""
        if not isinstance(condition, Condition):
            raise ValueError("this model needs audio to listen to; pass ss.Audio(path) as the prompt")
        if condition.features.shape[0] != self._channels:
            have, need = condition.features.shape[0], self._channels
            raise ValueError(f"the audio features have {have} mel bins, and this model reads {need}")

    def open(self, condition: Condition) -> None:
        """Encode a condition, unless it was."""
        self.check(condition)
        if condition not in self._states:
            self._states[condition] = self.project(condition.encoded(self.encoder, self._encode))

    def of(self, condition: Condition, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, [1, heads, positions, dim]."""
        return self._states[condition][layer]

    def _encode(self, features: Tensor) -> Float[Tensor, "positions hidden"]:
        given = features[None].to(self._device, self._dtype)
        if self._device.type == "cuda":
            try:
                from slipstream.models.run.encoder_decoder.gpu_encoder import captured_encoder
            except ImportError:  # Triton is not installed
                pass
            else:
                return captured_encoder(self.encoder, given)
        states: Tensor = self.encoder(given)[0][0]
        return states

    def project(self, states: Float[Tensor, "positions hidden"]) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of every layer for an encoder's output."""
        return [(self._split(part.k_proj(states)), self._split(part.v_proj(states))) for part in self._attentions]

    def _split(self, flat: Float[Tensor, "positions hidden"]) -> Float[Tensor, "1 heads positions dim"]:
        return flat.view(len(flat), self._heads, -1).transpose(0, 1)[None].contiguous()


def _shared(encoder: nn.Module) -> nn.Module:
    """An encoder in use with the same weights, type and device, else this one. Distilled models keep the encoder."""
    for other in list(_encoders):
        if other is encoder or _equal(other, encoder):
            return other
    _encoders.add(encoder)
    return encoder


def _equal(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    if ours.keys() != theirs.keys():
        return False
    alike = ((x, theirs[name]) for name, x in ours.items())
    return all((x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device) and torch.equal(x, y) for x, y in alike)
