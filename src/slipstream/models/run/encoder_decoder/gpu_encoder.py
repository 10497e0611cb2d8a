"""An encoder on a GPU as a CUDA graph: its input always has the same size, and its many modules cost more to launch
than to run."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.models.run.gpu.passes import capture

_captured: weakref.WeakKeyDictionary[nn.Module, EncoderGraph] = weakref.WeakKeyDictionary()


class EncoderGraph:
    """The buffers of an encoder, and its graph. Without a GPU the modules run over the same buffers."""

    def __init__(self, encoder: nn.Module, features: Float[Tensor, "1 channels frames"]) -> None:
        self._input = features.clone()
        self._output: Tensor = encoder(self._input)[0].clone()
        modules = weakref.proxy(encoder)

        def run() -> None:
            self._output.copy_(modules(self._input)[0])

        self._replay = _graph(run) if features.is_cuda else run

    def __call__(self, features: Float[Tensor, "1 channels frames"]) -> Float[Tensor, "positions hidden"]:
        self._input.copy_(features)
        self._replay()
        return self._output[0].clone()


def _graph(run: Callable[[], None]) -> Callable[[], None]:
    try:
        return capture(run)
    except Exception as error:  # whatever a capture raises, the modules still run
        warnings.warn(f"the encoder runs without CUDA graphs ({error})", RuntimeWarning, stacklevel=2)
        return run


def captured_encoder(
    encoder: nn.Module, features: Float[Tensor, "1 channels frames"]
) -> Float[Tensor, "positions hidden"]:
    """The output of an encoder. Its graph is captured the first time."""
    if encoder not in _captured:
        _captured[encoder] = EncoderGraph(encoder, features)
    return _captured[encoder](features)
