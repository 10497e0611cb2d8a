"""Work that is kept out of a model's start. It runs in the background a little later, or when the process ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

PAUSE = 10.0  # seconds before deferred work starts, at the lowest priority


class BackgroundTask:
    """Does its work once. Ctrl-C at the end of the process aborts it, which the work must tolerate."""

    def __init__(self, work: Callable[[], None], pause: float = PAUSE) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()
        timer = threading.Timer(pause, self._run_at_low_priority)
        timer.daemon = True
        timer.start()
        atexit.register(self._at_end)

    def run(self) -> None:
        with self._lock:  # a second caller waits until the work is done
            work, self._work = self._work, None
            if work is not None:
                work()

    def _run_at_low_priority(self) -> None:
        if sys.platform == "linux":  # only Linux has priorities of single threads
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        self.run()

    def _at_end(self) -> None:
        with suppress(KeyboardInterrupt):
            self.run()
