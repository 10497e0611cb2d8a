"""Functions on a GPU that are captured as CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def capture(run: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """Capture a function as one CUDA graph. Returns what replays it.

    The function first runs twice uncaptured, so that all kernels are compiled. A capture that fails leaves its stream
    unusable, so each one has a stream of its own. Garbage collection is off meanwhile: it might free an old graph,
    which is not allowed during a capture. `pool`: memory that graphs share which never run at the same time.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
        torch.cuda.synchronize()
        collecting = gc.isenabled()
        gc.disable()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # other threads may go on
        try:
            run()
        finally:
            graph.capture_end()
            if collecting:
                gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
    gc.freeze()  # what a graph holds stays alive; searching it for garbage takes longer than many cycles
    return graph.replay


@contextmanager
def sync_forbidden() -> Iterator[None]:
    """Raise an error if code in this block reads a number back from the device, which no graph can record.

    Failing here is better than failing within a capture.
    """
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode does not notice everything
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
