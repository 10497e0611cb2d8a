"""Copies runs of entries from places to other places, in all tensors of a KV cache.

On a GPU one launch copies all runs in all tensors of a shape. Tensor by tensor, the host takes longer than the pass
that computed the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from slipstream.core.array_types import Tensor

if TYPE_CHECKING:
    from slipstream.kernels.gpu.entries import EntryCopier

Run = tuple[int, int, int]
"""Entries that lie side by side: their first place, the place that the first is copied to, and how many there are."""


class RunCopier:
    """Copies within these tensors, [1, heads, places, size]. It must be made anew when one of them is replaced."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._kernel = _kernel(tensors)

    def copy(self, runs: Sequence[Run]) -> None:
        """Copy runs, none of which begins in another one's target. A run may overlap its own target."""
        if self._kernel is not None and all(abs(source - target) >= count for source, target, count in runs):
            self._kernel.copy(runs)
            return
        for tensor in self._tensors:
            for source, target, count in runs:
                part = tensor[0, :, source : source + count]
                overlap = abs(source - target) < count
                tensor[0, :, target : target + count] = part.clone() if overlap else part


def _kernel(tensors: Sequence[Tensor]) -> EntryCopier | None:
    """The kernel for all tensors at once, on a GPU; None where there is none."""
    if not tensors or tensors[0].device.type != "cuda" or find_spec("triton") is None:
        return None
    from slipstream.kernels.gpu.entries import EntryCopier

    return EntryCopier(tensors)
