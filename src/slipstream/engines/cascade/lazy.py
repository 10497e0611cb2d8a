"""An engine that is opened on first use, and can be closed while nobody uses it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slipstream.engines.base import Engine


class LazyEngine:
    """Opens an engine on first use. After `idle_seconds` without use it is closed, and the next use opens it again.

    `idle_seconds` None: it stays open until `unload` or `close`."""

    def __init__(self, make: Callable[[], Engine], idle_seconds: float | None = None) -> None:
        if idle_seconds is not None and not idle_seconds >= 0:
            raise ValueError(f"idle_seconds is {idle_seconds}; it must be 0 or more, or None to stay loaded")
        self._make, self._idle_seconds = make, idle_seconds
        self._engine: Engine | None = None
        self._users, self._lock = 0, threading.Lock()
        self._timer: threading.Timer | None = None
        self.loads = 0  # how often it was opened

    @property
    def engine(self) -> Engine | None:
        """The engine if it is open."""
        return self._engine

    @contextmanager
    def use(self) -> Iterator[Engine]:
        """The open engine. It is not closed before the `with` block ends."""
        with self._lock:
            self._stop_timer()
            if self._engine is None:
                self._engine, self.loads = self._make(), self.loads + 1
            self._users += 1
            engine = self._engine
        try:
            yield engine
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._idle_seconds is not None:
                    self._timer = threading.Timer(self._idle_seconds, self.unload)
                    self._timer.daemon = True
                    self._timer.start()

    def unload(self) -> bool:
        """Close the engine and free its memory, unless it is in use. Returns whether it is closed now."""
        with self._lock:
            if self._users:
                return False
            self._stop_timer()
            self._close()
            return True

    def close(self) -> None:
        """Close the engine, also one in use."""
        with self._lock:
            self._stop_timer()
            self._close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if self._engine is None:
            return
        self._engine.close()
        self._engine = None
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
