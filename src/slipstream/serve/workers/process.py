"""A worker, as the process that started it sees it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from slipstream.engines.process.channel import Channel
from slipstream.engines.process.child import ended
from slipstream.engines.process.engine import ProcessEngine
from slipstream.serve.config import ServerConfig
from slipstream.serve.errors import ApiError
from slipstream.serve.local_shared import LocalShared
from slipstream.serve.metrics import Metrics
from slipstream.serve.workers.fork_server import NUMBER, ForkServer
from slipstream.serve.workers.link import Link

ANSWER_SECONDS = 2.0  # that a worker has to answer; one that hangs keeps nobody waiting


class WorkerProcess:
    """Starts a worker, answers what it asks, and holds the places of its requests."""

    def __init__(
        self,
        forks: ForkServer,
        config: ServerConfig,
        log_form: str,
        shared: LocalShared,
        status: Callable[[], Awaitable[str]],
    ) -> None:
        ours, theirs = socket.socketpair()
        self._connections, their_connections = socket.socketpair()
        self._connections.setblocking(False)
        self._status, their_status = socket.socketpair()
        self._status.setblocking(False)
        with theirs, their_connections, their_status:
            forks.fork(their_status, theirs, their_connections)
        self.pid, self._killed = 0, False  # 0 before it has started
        self._shared, self.counts = shared, Metrics()
        self._numbers, self._places = itertools.count(), dict[int, AsyncExitStack]()
        self.ready, self._closed = asyncio.Event(), asyncio.Event()
        handlers: dict[str, Callable[..., Awaitable[Any]]] = {
            "engines": self._engines,
            "ready": self._is_ready,
            "admit": self._admit,
            "use": self._use,
            "leave": self._leave,
            "status": status,
            "models": shared.models,
            "about": shared.about,
            "metrics": shared.metrics,
        }
        channel = Channel(ours)
        channel.send(config, log_form)
        self._link = Link(channel, handlers, self._closed.set)

    def give(self, connection: socket.socket) -> bool:
        """Hand over a connection. False where it takes none now."""
        try:
            socket.send_fds(self._connections, [b"c"], [connection.fileno()])
        except OSError:  # it has ended, or does not read
            return False
        return True

    async def connect(self) -> None:
        """Let it connect to the models that are loaded, so that its first request need not wait for that."""
        for model, address in await self._engines():
            with suppress(OSError, ApiError):  # the worker or the model's process has ended
                await self._link.ask("connect", model, address)

    async def update_counts(self) -> None:
        """Ask for its counts. Those of a worker that ends or hangs stay as they were known last."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                self.counts = await self._link.ask("counts")

    async def stop(self) -> None:
        """Let it finish what is under way. One that is not ready yet has nothing to finish."""
        if not self.ready.is_set():
            self.kill()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._link.ask("stop")

    async def run(self) -> str:
        """Wait for its start and its end, and give back the places of its requests. How it ended."""
        self.pid = await self._number() or 0
        if self._killed:
            self.kill()
        await self._closed.wait()
        code = await self._number()
        self._connections.close()
        self._status.close()
        places, self._places = self._places, {}
        for stack in places.values():
            await stack.aclose()
        return "it is not known how" if code is None else ended(code)

    async def _number(self) -> int | None:
        """The next number of the fork server about it; None where that has ended."""
        data = await asyncio.get_running_loop().sock_recv(self._status, NUMBER.size)
        return NUMBER.unpack(data)[0] if data else None

    def kill(self) -> None:
        """One that is being started is killed as soon as it is there."""
        self._killed = True
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def _engines(self) -> list[tuple[str, str]]:
        """The loaded models and the addresses of their processes."""
        models = [(model.name, model.engine) for model in self._shared.pool.loaded]
        return [(name, engine.address) for name, engine in models if isinstance(engine, ProcessEngine) and engine.ready]

    async def _is_ready(self) -> None:
        self.ready.set()

    async def _admit(self, tenant: str) -> int:
        stack = AsyncExitStack()
        await stack.enter_async_context(self._shared.admit(tenant))
        return await self._keep(stack)

    async def _use(self, name: str | None) -> tuple[int, str, str, int]:
        stack = AsyncExitStack()
        served = await stack.enter_async_context(self._shared.use(name))
        assert isinstance(served.engine, ProcessEngine)
        return await self._keep(stack), served.name, served.engine.address, served.created

    async def _keep(self, stack: AsyncExitStack) -> int:
        """Hold a place until the worker gives it back or ends. It may have ended while a model was loaded."""
        if self._closed.is_set():
            await stack.aclose()
        place = next(self._numbers)
        self._places[place] = stack
        return place

    async def _leave(self, place: int) -> None:
        await self._places.pop(place).aclose()
