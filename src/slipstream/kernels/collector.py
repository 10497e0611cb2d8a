"""Garbage collection: off during imports and loading; while engines decode rare, and without what stays alive.

Every emitted token makes objects that live until its request is read. At 256 rows Python's default, a collection for
every 700 objects, takes a tenth of all time. Loaded models and captured graphs stay alive for as long as the engine;
searching them takes longer than many cycles.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000  # objects made since the last collection of young ones, at least

_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []  # the process's own thresholds, once for each engine that decodes


def relax() -> None:
    """Leave out what exists now, and collect young objects less often."""
    with _lock:
        _usual.append(gc.get_threshold())
        young, *older = _usual[0]
        gc.set_threshold(max(young, YOUNG) if young else 0, *older)  # 0: somebody has turned it off
        gc.freeze()


def restore() -> None:
    """Undo one `relax`. The last one restores the process's own thresholds."""
    with _lock:
        if not _usual:
            return
        last = _usual.pop()
        if not _usual:
            gc.set_threshold(*last)
            gc.unfreeze()


@contextmanager
def paused() -> Iterator[None]:
    """Turn garbage collection off. Imports and weights create very many objects that all stay alive. Searching them
    takes a seventh of the time of importing torch or transformers."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
