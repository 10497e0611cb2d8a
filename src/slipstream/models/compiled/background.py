"""What need not be done while someone waits.

Garbage is not looked for while a model is loaded. And work that may wait is done in the background a little later, or
when the process ends, whichever comes first.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PAUSE = 10.0  # seconds; an answer that takes longer shares the machine with us, at the lowest priority


@contextmanager
def undisturbed() -> Iterator[None]:
    """Imports and weights make very many objects, and all of them stay: to go through them again and again meanwhile,
    in search of garbage, is a seventh of the time that transformers takes to import."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


class BackgroundTask:
    """Does its work once. Ctrl-C at the end of the process gives it up; whatever it does must bear that."""

    def __init__(self, work: Callable[[], None], pause: float = PAUSE) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()
        timer = threading.Timer(pause, self._aside)
        timer.daemon = True
        timer.start()
        atexit.register(self._at_end)

    def run(self) -> None:
        with self._lock:  # who comes second waits until it is done
            work, self._work = self._work, None
            if work is not None:
                work()

    def _aside(self) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        self.run()

    def _at_end(self) -> None:
        with suppress(KeyboardInterrupt):
            self.run()
