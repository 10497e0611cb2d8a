"""Requests of the engine's thread, awaited by the server's event loop.

The engine's thread and the event loop share the interpreter's lock, and each system call hands it over. So the engine
wakes the loop once for all chunks that are there, and the loop takes all of them at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial

from slipstream.engines.base import Chunk, Completion, RequestHandle


class Wakeups:
    """Calls from other threads into the event loop: one wake-up for all that come before the loop runs."""

    def __init__(self) -> None:
        self._loop, self._due, self._asked = asyncio.get_running_loop(), deque[Callable[[], None]](), False

    def call(self, callback: Callable[[], None]) -> None:
        """From any thread. A call between the check and the wake-up is in the queue, so none is lost."""
        self._due.append(callback)
        if not self._asked:
            self._asked = True
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._asked = False  # before the queue is emptied: whoever comes later wakes the loop again
        while self._due:
            self._due.popleft()()


class SampleStreams:
    """The samples of a request. A reader that is slow holds up nobody: chunks wait for it in memory."""

    def __init__(self, handles: Sequence[RequestHandle], wakeups: Wakeups) -> None:
        self._handles, self._new, self._due = handles, asyncio.Event(), dict[int, None]()
        for index, handle in enumerate(handles):
            handle.notify(partial(wakeups.call, partial(self._mark, index)))

    def _mark(self, index: int) -> None:
        self._due[index] = None
        self._new.set()

    async def batches(self, seconds: float | None = None) -> AsyncIterator[list[tuple[int, Chunk]]]:
        """All chunks that are there, each with the number of its sample, until every sample has its last one.
        TimeoutError where it has not come after so many seconds."""
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        left = len(self._handles)
        while left:
            async with asyncio.timeout_at(deadline):  # nothing is yielded in here: the time is not the reader's
                await self._new.wait()
            self._new.clear()
            due, self._due = self._due, {}
            batch = [(index, chunk) for index in due for chunk in self._handles[index].poll()]
            left -= sum(chunk.finish_reason is not None for _, chunk in batch)
            if batch:
                yield batch

    @property
    def completions(self) -> list[Completion]:
        """After the last chunk."""
        return [handle.result() for handle in self._handles]
