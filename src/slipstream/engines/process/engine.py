"""An engine whose model runs in a process of its own, which this one starts, watches and ends.

If the process dies, the requests under way end with an error, and it is started again.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable

from slipstream.engines.base import Engine
from slipstream.engines.process.channel import Channel
from slipstream.engines.process.child import EngineChild
from slipstream.engines.process.remote import CLOSED, RemoteEngine

logger = logging.getLogger("slipstream.serve")
RESTART_SECONDS = (0.0, 1.0, 5.0, 30.0)  # before the next start, by the number of starts that failed


class ProcessEngine(RemoteEngine):
    """`open_engine` is a function without arguments that can be pickled, such as a `functools.partial`. It is called in
    the new process, and an error that it raises is raised here."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        super().__init__()
        self._opening, self._closing = pickle.dumps(open_engine), threading.Event()
        self._child = EngineChild(self._opening)
        self._about = self._child.wait_ready()
        self._ready = True
        self._thread = threading.Thread(target=self._supervise, name="slipstream-engine-process", daemon=True)
        self._thread.start()

    @property
    def _channel(self) -> Channel:
        return self._child.channel

    @property
    def process_id(self) -> int:
        """The id of the process that runs the model."""
        return self._child.pid

    @property
    def address(self) -> str:
        """The path of the socket over which other processes use the engine (`ConnectedEngine`). It changes when the
        process is started again."""
        return self._child.address

    def close(self) -> None:
        if os.getpid() != self._pid or self._closing.is_set():
            return
        self._closing.set()
        was_ready, self._ready, self._unready = self._ready, False, CLOSED
        if was_ready:
            self._child.end()
        else:
            self._child.kill()  # it loads the model, and nobody waits for it
        self._thread.join()

    def _supervise(self) -> None:
        """Read what the process sends, and start it again where it ends."""
        while True:
            while (message := self._child.channel.receive()) is not None:
                self._take(*message)
            self._ready = False
            how = self._child.reap()
            if self._closing.is_set():
                self._end_all("cancelled", "the engine is closed")
                return
            logger.error("the engine's process ended (%s); it is started again", how)
            self._end_all("error", f"the engine's process ended ({how}); it is started again")
            if not self._restart():
                return

    def _restart(self) -> bool:
        """False where the engine is closed meanwhile."""
        failed = 0
        while not self._closing.wait(RESTART_SECONDS[min(failed, len(RESTART_SECONDS) - 1)]):
            self._child = EngineChild(self._opening)
            try:
                self._about = self._child.wait_ready()
            except Exception as error:
                failed += 1
                logger.error("the engine's process cannot be started: %s", error)
                continue
            self._ready = True
            return True
        return False
