"""Sends the output of an engine's requests to other processes: one message per connection for all rows of a cycle.

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

from slipstream.engines.base import RequestHandle
from slipstream.engines.job import Emission
from slipstream.engines.process.channel import Channel, RowOutput

STATS_SECONDS = 0.1  # between two messages with the counts of the engine


class OutputQueue:
    """What is to be sent over one connection. `over` is called with the number of a request after its last output."""

    def __init__(self, channel: Channel, over: Callable[[int], None]) -> None:
        self.channel, self.over = channel, over
        self.accepted, self.rows = list[int](), list[RowOutput]()

    def add(self, number: int, job: RequestHandle) -> None:
        """Take what a request has put out."""
        for item in job.undecoded():
            ended = item.finish_reason is not None
            if not ended and type(item) is Emission and not (item.logprobs or item.prompt_logprobs or item.draft):
                self.rows.append((number, list(item.token_ids), [origin._value_ for origin in item.origins], None))
                continue
            end = job.outcome() if ended else None
            self.rows.append((number, (), (), pickle.dumps((item, end), 5)))
            if ended:
                self.over(number)

    def send(self) -> None:
        accepted, rows, self.accepted, self.rows = self.accepted, self.rows, [], []
        if accepted or rows:
            with suppress(OSError):  # its process has ended; whoever receives from it cancels its requests
                self.channel.send_output(accepted, rows)


Entry = tuple[OutputQueue, int, RequestHandle | None]  # None: the request was accepted


class OutputWriter:
    def __init__(self, send_stats: Callable[[], None]) -> None:
        self._send_stats, self._due = send_stats, deque[Entry]()
        self._ready, self._asked, self._closed = threading.Event(), False, False
        self._thread = threading.Thread(target=self._work, name="slipstream-output", daemon=True)
        self._thread.start()

    def accept(self, queue: OutputQueue, number: int) -> None:
        """Report that a request was accepted."""
        self._mark((queue, number, None))

    def watch(self, queue: OutputQueue, number: int, job: RequestHandle) -> None:
        """Send the output of a request."""
        job.notify(partial(self._mark, (queue, number, job)))

    def _mark(self, entry: Entry) -> None:
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
        with suppress(OSError):  # the process that started this one has ended, and this one does, too
            while not self._closed or self._due:
                woken = self._ready.wait(STATS_SECONDS if changed else None)
                self._ready.clear()
                self._asked = False  # before the queue is emptied: whoever comes later wakes this thread again
                if woken:
                    self._send()
                    changed = True
                if changed and time.monotonic() - sent > STATS_SECONDS:
                    self._send_stats()
                    sent, changed = time.monotonic(), woken

    def _send(self) -> None:
        due, queues = self._due, dict[OutputQueue, None]()
        while due:
            queue, number, job = due.popleft()
            queues[queue] = None
            if job is None:
                queue.accepted.append(number)
            else:
                queue.add(number, job)
        for queue in queues:
            queue.send()
