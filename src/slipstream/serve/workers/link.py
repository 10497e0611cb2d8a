"""Questions and answers between two event loops in different processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from slipstream.engines.process.channel import Channel

Handler = Callable[..., Awaitable[Any]]


class Link:
    """One end. `handlers` answer what the other end asks. `ended` is called when the other end is closed."""

    def __init__(self, channel: Channel, handlers: dict[str, Handler], ended: Callable[[], None]) -> None:
        self._channel, self._handlers, self._ended = channel, handlers, ended
        self._next, self._asked = 0, dict[int, asyncio.Future[Any]]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel.fileno(), self._read)

    async def ask(self, name: str, *values: Any) -> Any:
        """The answer of the other end. Raises its error, or ConnectionError where it has ended."""
        self._next += 1
        future = self._asked[self._next] = self._loop.create_future()
        self._channel.send("ask", self._next, name, values)
        return await future

    def _read(self) -> None:
        messages, is_open = self._channel.receive_available()
        for kind, number, *values in messages:
            if kind == "ask":
                task = self._loop.create_task(self._answer(number, *values))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif not (future := self._asked.pop(number)).done():
                result, error = values
                future.set_result(result) if error is None else future.set_exception(error)
        if not is_open:
            self.close()
            self._ended()

    async def _answer(self, number: int, name: str, values: tuple[Any, ...]) -> None:
        answer: tuple[Any, Exception | None]
        try:
            answer = (await self._handlers[name](*values), None)
        except Exception as error:
            answer = (None, error)
        with suppress(OSError):  # the other end has ended
            self._channel.send("answer", number, *answer)

    def close(self) -> None:
        """Close this end. What was asked fails."""
        if self._channel.fileno() < 0:
            return
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(ConnectionError("the other process has ended"))
