"""The condition of a request: input features that an encoder reads once, and the cross-attention computed from them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor

if TYPE_CHECKING:
    from slipstream.models.run.encoder_decoder.input_graph import InputGraph

_graphs: weakref.WeakKeyDictionary[nn.Module, dict[torch.Size, InputGraph]] = weakref.WeakKeyDictionary()  # on a GPU
_encoders: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of all models in use, so that equal ones are shared


class Condition:
    """Input features, such as the log-mel spectrogram of 30 seconds.

    Each encoder reads them at most once, whatever the number of samples, attempts and draft models."""

    def __init__(self, features: Float[Tensor, "channels frames"]) -> None:
        self.features = features
        self._seconds = 0.0  # that encoders took on the host
        self._weights = 0  # of these encoders
        self._marks = list[tuple[Any, Any]]()  # where encoders begin and end on a GPU
        self._encoded: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()

    def encoded(
        self, encoder: nn.Module, encode: Callable[[Tensor], Float[Tensor, "positions hidden"]]
    ) -> Float[Tensor, "positions hidden"]:
        """The output of an encoder."""
        if encoder not in self._encoded:
            started, began = time.perf_counter(), _mark(encoder)
            self._encoded[encoder] = encode(self.features)
            if began is None:
                self._seconds += time.perf_counter() - started
                self._weights += _weights(encoder)
            else:
                self._marks.append((began, _mark(encoder)))
        return self._encoded[encoder]

    def expected_seconds(self, encoder: nn.Module) -> float:
        """What an encoder that did not read it yet would take on the host, by what others took for their weights."""
        if encoder in self._encoded or not self._weights:
            return 0.0
        return self._seconds * _weights(encoder) / self._weights

    @property
    def seconds(self) -> float:
        """The time that encoders took. It waits for a GPU, so ask when the request has ended."""
        for _, ended in self._marks:
            ended.synchronize()
        milliseconds: float = sum(began.elapsed_time(ended) for began, ended in self._marks)
        return self._seconds + milliseconds / 1000


class CrossAttentionStates:
    """The keys and values of every decoder layer for the condition of each open row.

    They are computed when a row opens, or when they are first needed, and kept until its condition is dropped: a
    roll-back does not concern them. Rows with the same condition share them."""

    def __init__(self, model: Any) -> None:
        config, decoder = model.config, model.get_decoder()
        self.encoder = model.model.encoder = _shared(model.get_encoder())
        self._attentions = [layer.encoder_attn for layer in decoder.layers]
        self._heads, self._dtype, self._device = config.decoder_attention_heads, model.dtype, model.device
        self._channels = config.num_mel_bins
        self._states: weakref.WeakKeyDictionary[Condition, Tensor] = weakref.WeakKeyDictionary()
        self._graphs: dict[torch.Size, InputGraph] = {}  # of the projections, on a GPU

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
        states = self.stacked(condition)
        return states[None, 2 * layer], states[None, 2 * layer + 1]

    def stacked(self, condition: Condition) -> Float[Tensor, "keys_and_values heads positions dim"]:
        """Keys and values of all layers in turns."""
        if condition not in self._states:
            self.open(condition)
        return self._states[condition]

    def _encode(self, features: Tensor) -> Float[Tensor, "positions hidden"]:
        given = features[None].to(self._device, self._dtype)
        if (graph := self._captured(given)) is not None:
            own = _graphs.setdefault(self.encoder, {})
            if given.shape not in own:
                own[given.shape] = graph(partial(_output, weakref.proxy(self.encoder)), given, "encoder")
            return own[given.shape](given)
        return _output(self.encoder, given)

    def project(
        self, states: Float[Tensor, "positions hidden"]
    ) -> Float[Tensor, "keys_and_values heads positions dim"]:
        """The keys and values of every layer for an encoder's output."""
        if (graph := self._captured(states)) is None:
            return _projected(self._attentions, self._heads, states)
        if states.shape not in self._graphs:
            project = partial(_projected, self._attentions, self._heads)
            self._graphs[states.shape] = graph(project, states, "projection of the encoder")
        return self._graphs[states.shape](states)

    def _captured(self, given: Tensor) -> type[InputGraph] | None:
        """How a function of this tensor is captured; None: it is not."""
        if not given.is_cuda:
            return None
        try:
            from slipstream.models.run.encoder_decoder.input_graph import InputGraph
        except ImportError:  # Triton is not installed
            return None
        return InputGraph


def _weights(encoder: nn.Module) -> int:
    return sum(part.numel() for part in encoder.parameters())


def _mark(encoder: nn.Module) -> Any:
    """An event at this place of the GPU's work; None on a CPU."""
    if not next(encoder.parameters()).is_cuda:
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _output(encoder: Any, features: Float[Tensor, "1 channels frames"]) -> Float[Tensor, "positions hidden"]:
    states: Tensor = encoder(features)[0][0]
    return states


def _projected(
    attentions: Sequence[Any], heads: int, states: Float[Tensor, "positions hidden"]
) -> Float[Tensor, "keys_and_values heads positions dim"]:
    parts = [part for one in attentions for part in (one.k_proj, one.v_proj)]
    positions, hidden = states.shape
    out = states.new_empty(len(parts), heads, positions, hidden // heads)
    for own, part in zip(out, parts, strict=True):
        own.copy_(part(states).view(positions, heads, -1).transpose(0, 1))
    return out


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
