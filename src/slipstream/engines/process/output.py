"""Sends the output of an engine's requests to another process: one message for all rows of a cycle.

The engine's thread notes which request has output. A thread of its own takes all that is there and sends it, so a cycle
costs the engine's thread one wake-up.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from slipstream.engines.job import Emission, Job
from slipstream.engines.process.channel import Channel, RowOutput

STATS_SECONDS = 0.1  # between two messages with the counts of the engine


class OutputWriter:
    def __init__(self, channel: Channel, stats: Callable[[], dict[str, Any]]) -> None:
        self._channel, self._stats = channel, stats
        self._due = deque[tuple[int, Job, Callable[[int], None]]]()
        self._accepted = deque[int]()
        self._ready, self._asked, self._closed = threading.Event(), False, False
        self._thread = threading.Thread(target=self._work, name="slipstream-output", daemon=True)
        self._thread.start()

    def accept(self, number: int) -> None:
        """Report that a request was accepted."""
        self._accepted.append(number)
        self._wake()

    def watch(self, number: int, job: Job, over: Callable[[int], None]) -> None:
        """Send the output of a request. `over` is called with its number after the last of it."""
        job.notify(partial(self._mark, (number, job, over)))

    def _mark(self, entry: tuple[int, Job, Callable[[int], None]]) -> None:
        self._due.append(entry)
        if not self._asked:
            self._wake()

    def _wake(self) -> None:
        self._asked = True
        self._ready.set()

    def close(self) -> None:
        """Send what is left."""
        self._closed = True
        self._wake()
        self._thread.join()

    def _work(self) -> None:
        sent, changed = 0.0, False
        with suppress(OSError):  # the other process has ended, and this one does, too
            while not self._closed or self._due:
                woken = self._ready.wait(STATS_SECONDS if changed else None)
                self._ready.clear()
                self._asked = False  # before the queues are emptied: whoever comes later wakes this thread again
                if woken:
                    self._send()
                    changed = True
                if changed and time.monotonic() - sent > STATS_SECONDS:
                    self._channel.send("stats", self._stats())
                    sent, changed = time.monotonic(), woken

    def _send(self) -> None:
        rows: list[RowOutput] = []
        accepted = [self._accepted.popleft() for _ in range(len(self._accepted))]
        due = self._due
        while due:
            number, job, over = due.popleft()
            for item in job.undecoded():
                ended = item.finish_reason is not None
                if not ended and type(item) is Emission and not (item.logprobs or item.prompt_logprobs or item.draft):
                    rows.append((number, list(item.token_ids), [origin._value_ for origin in item.origins], None))
                    continue
                end = (job.stats, job.guarantee, job.queue_seconds) if ended else None
                rows.append((number, (), (), pickle.dumps((item, end), 5)))
                if ended:
                    over(number)
        if accepted or rows:
            self._channel.send_output(accepted, rows)
