"""Requests of the engine's thread, awaited by the server's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from slipstream.engines.base import Chunk, Completion, RequestHandle


class AsyncRequest:
    """One sample of a request. A reader that is slow holds up nobody: chunks wait for it in memory."""

    def __init__(self, handle: RequestHandle) -> None:
        self._handle, self._loop, self._ready = handle, asyncio.get_running_loop(), asyncio.Event()
        handle.notify(self._wake)

    def _wake(self) -> None:
        """From the engine's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._ready.set)

    async def chunks(self, seconds: float | None = None) -> AsyncIterator[Chunk]:
        """What each cycle brought; chunks that came meanwhile follow one another. TimeoutError where the last one has
        not come after so many seconds."""
        deadline = None if seconds is None else self._loop.time() + seconds
        while True:
            async with asyncio.timeout_at(deadline):  # nothing is yielded in here: the time is not the reader's
                await self._ready.wait()
            self._ready.clear()
            for chunk in self._handle.poll():
                yield chunk
                if chunk.finish_reason is not None:
                    return

    @property
    def completion(self) -> Completion:
        """After the last chunk."""
        return self._handle.result()

    def cancel(self) -> None:
        self._handle.cancel()
