"""Requests of the engine's thread, awaited by the server's event loop.

The engine's thread and the event loop share the interpreter's lock, and each system call hands it over. So the engine
wakes the loop once for all chunks that are there, and the loop takes all of them at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from slipstream.engines.base import Chunk, Completion, RequestHandle


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class Wakeups:
    """Calls from other threads into the event loop: one wake-up for all that come before the loop runs."""

    def __init__(self) -> None:
        self._loop, self._due, self._asked = asyncio.get_running_loop(), deque[tuple[SampleStreams, int]](), False
        self._thread = threading.get_ident()

    def call(self, streams: SampleStreams, index: int) -> None:
        """Mark a sample as ready, from any thread. A call between the check and the wake-up is in the queue, so none is
        lost."""
        if threading.get_ident() == self._thread:
            streams.mark(index)
            return
        self._due.append((streams, index))
        if not self._asked:
            self._asked = True
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._asked = False  # before the queue is emptied: whoever comes later wakes the loop again
        while self._due:
            streams, index = self._due.popleft()
            streams.mark(index)


class SampleStreams:
    """The samples of a request. A reader that is slow holds up nobody: chunks wait for it in memory."""

    def __init__(self, handles: Sequence[RequestHandle], wakeups: Wakeups) -> None:
        self._handles, self._due, self._left = handles, dict[int, None](), len(handles)
        self._waiter: asyncio.Future[None] | None = None
        self._gone, self._late = False, False
        for index, handle in enumerate(handles):
            handle.notify(partial(wakeups.call, self, index))

    def mark(self, index: int) -> None:
        """A sample has new chunks."""
        self._due[index] = None
        self._wake()

    def disconnect(self) -> None:
        """The client is gone: the reader gets `ClientGone` in place of the next batch."""
        self._gone = True
        self._wake()

    def expire(self) -> None:
        """The time is over: the reader gets TimeoutError once it has all chunks that are there."""
        self._late = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def over(self) -> bool:
        """Whether every sample's last chunk was read."""
        return not self._left

    async def accepted(self) -> None:
        """Wait until the engine has accepted all samples. Raises the error of one that it refuses."""
        while not all(handle.accepted() for handle in self._handles):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def batch(self) -> list[tuple[int, Chunk]]:
        """All chunks that are there, each with the number of its sample. Waits until there is one."""
        while True:
            if self._gone:
                raise ClientGone
            due, self._due = self._due, {}
            if batch := [(index, chunk) for index in due for chunk in self._handles[index].poll()]:
                self._left -= sum(chunk.finish_reason is not None for _, chunk in batch)
                return batch
            if self._late:
                raise TimeoutError
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    @property
    def completions(self) -> list[Completion]:
        """After the last chunk."""
        return [handle.result() for handle in self._handles]
