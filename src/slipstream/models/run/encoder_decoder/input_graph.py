"""A function of one tensor of fixed size, as a CUDA graph: an encoder, or the projections of its output.

Their many modules cost more to launch than to run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from slipstream.core.array_types import Tensor
from slipstream.models.run.gpu.graphs import capture


class InputGraph:
    """The buffers of a function, and its graph. Without a GPU the function runs over the same buffers.

    `name`: the function in a warning."""

    def __init__(self, function: Callable[[Tensor], Tensor], like: Tensor, name: str) -> None:
        self._input = like.clone()
        self._output = function(self._input).clone()

        def run() -> None:
            self._output.copy_(function(self._input))

        self._replay = _graph(run, name) if like.is_cuda else run

    def __call__(self, given: Tensor) -> Tensor:
        self._input.copy_(given)
        self._replay()
        return self._output.clone()


def _graph(run: Callable[[], None], name: str) -> Callable[[], None]:
    try:
        return capture(run)
    except Exception as error:  # whatever a capture raises, the modules still run
        warnings.warn(f"the {name} runs without CUDA graphs ({error})", RuntimeWarning, stacklevel=2)
        return run
