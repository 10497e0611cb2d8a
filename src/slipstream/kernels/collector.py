"""What the interpreter does beside an engine's thread: garbage collection, and turns of other threads.

Garbage collection is off during imports and loading. While engines decode it is rare, and leaves out what stays alive.

Every emitted token makes objects that live until its request is read. At 256 rows Python's default, a collection for
every 700 objects, takes a tenth of all time. Loaded models and captured graphs stay alive for as long as the engine;
searching them takes longer than many cycles.

Each time an engine's thread waits for the device, another thread may compute, as one that reads what has finished. It
then keeps the interpreter for as long as a turn: by default 5 ms, three cycles of 256 rows.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000  # objects made since the last collection of young ones, at least
TURN = 1e-4  # seconds that a thread may keep the interpreter while another waits for it

_lock = threading.Lock()
_usual: list[tuple[tuple[int, int, int], float]] = []  # the process's own settings, once for each engine that decodes


def relax() -> None:
    """Leave out what exists now, and collect young objects less often. Turns of threads are short."""
    with _lock:
        _usual.append((gc.get_threshold(), sys.getswitchinterval()))
        (young, *older), turn = _usual[0]
        gc.set_threshold(max(young, YOUNG) if young else 0, *older)  # 0: somebody has turned it off
        gc.freeze()
        sys.setswitchinterval(min(turn, TURN))


def restore() -> None:
    """Undo one `relax`. The last one restores the process's own settings."""
    with _lock:
        if not _usual:
            return
        thresholds, turn = _usual.pop()
        if not _usual:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            sys.setswitchinterval(turn)


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
