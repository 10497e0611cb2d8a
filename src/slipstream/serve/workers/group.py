"""The process that accepts connections and deals them out to its workers in turn. It holds what the workers share."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from slipstream.serve.config import ServerConfig
from slipstream.serve.local_shared import LocalShared
from slipstream.serve.metrics import Metrics
from slipstream.serve.models import Opener
from slipstream.serve.workers.fork_server import ForkServer
from slipstream.serve.workers.process import ANSWER_SECONDS, WorkerProcess

logger = logging.getLogger("slipstream.serve")
BACKLOG = 2048
STABLE_SECONDS = 10.0  # a worker that ends sooner is started again after as long
KILL_SECONDS = 5.0  # after the time for streams to finish, until workers are killed
WAIT_SECONDS = 0.05  # for workers that are not ready, between two looks


class WorkerGroup:
    """`config.api_servers` workers. One that ends is started again."""

    def __init__(self, config: ServerConfig, log_form: str, open_model: Opener | None = None) -> None:
        """`open_model` opens a model by its name as a `ProcessEngine`; by default as `config.engine` says."""
        self._config, self._log_form = config, log_form
        self._shared = LocalShared(config, open_model, self._counts)
        self._forks = ForkServer()
        self._workers: list[WorkerProcess] = []
        self._ended = Metrics()  # the counts of workers that have ended
        self._stopping, self._begun = asyncio.Event(), False

    async def run(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Serve until `stop` is called. Raises the error of the first model."""
        listener.setblocking(False)
        listener.listen(BACKLOG)
        supervisors = [asyncio.create_task(self._supervise()) for _ in range(self._config.api_servers)]
        stopping = asyncio.create_task(self._stopping.wait())
        others = [asyncio.create_task(self._accept(listener)), asyncio.create_task(self._load(ready))]
        try:
            pending: set[asyncio.Task[Any]] = {stopping, *others}
            while not stopping.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._stopping.set()
            self._shared.pool.closing = True
            for task in others:
                task.cancel()
            listener.close()
            if not self._begun:  # workers that are not forked yet never are
                self._forks.close()
            await self._end_workers(supervisors)
            self._forks.close()
            await self._shared.close()

    @property
    def process_ids(self) -> list[int]:
        """Of the workers."""
        return [worker.pid for worker in self._workers]

    def stop(self) -> None:
        """Let workers finish what is under way. At the second call they are killed."""
        if self._stopping.is_set():
            for worker in self._workers:
                worker.kill()
        self._stopping.set()

    async def _load(self, ready: Callable[[], None]) -> None:
        await self._shared.begin()
        while sum(worker.ready.is_set() for worker in self._workers) < self._config.api_servers:
            await asyncio.sleep(WAIT_SECONDS)
        await self._connect_workers()
        self._begun = True
        ready()

    async def _connect_workers(self) -> None:
        await asyncio.gather(*(worker.connect() for worker in self._workers if worker.ready.is_set()))

    async def _status(self) -> str:
        """As a client sees it: ready once every worker can answer at once."""
        status = await self._shared.status()
        if status != "ready":
            return status
        if not self._begun:
            return "loading"
        with suppress(TimeoutError):  # a worker that hangs keeps nobody waiting
            async with asyncio.timeout(ANSWER_SECONDS):  # to a model that was started again
                await self._connect_workers()
        return status

    async def _accept(self, listener: socket.socket) -> None:
        loop, turn = asyncio.get_running_loop(), 0
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # too many open files, or the client is gone
                logger.error("a connection cannot be accepted: %s", error)
                await asyncio.sleep(1.0)
                continue
            with connection:
                while not self._give(connection, turn):
                    await asyncio.sleep(WAIT_SECONDS)
            turn += 1

    def _give(self, connection: socket.socket, turn: int) -> bool:
        """Hand a connection to a worker: to the one whose turn it is, or to the next that takes it."""
        ready = [worker for worker in self._workers if worker.ready.is_set()]
        first = turn % max(1, len(ready))
        return any(worker.give(connection) for worker in ready[first:] + ready[:first])

    async def _supervise(self) -> None:
        """Keep one worker running."""
        while not self._stopping.is_set():
            began = time.monotonic()
            worker = WorkerProcess(self._forks, self._config, self._log_form, self._shared, self._status)
            self._workers.append(worker)
            how = await worker.run()
            self._workers.remove(worker)
            self._ended.add(worker.counts)
            if self._stopping.is_set():
                return
            logger.error("HTTP process %d ended (%s); it is started again", worker.pid, how)
            if time.monotonic() - began < STABLE_SECONDS:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), STABLE_SECONDS)

    async def _end_workers(self, supervisors: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        seconds = self._config.limits.shutdown_seconds + KILL_SECONDS
        _, late = await asyncio.wait(supervisors, timeout=seconds)
        if late:
            for worker in self._workers:
                worker.kill()
            await asyncio.wait(late)

    async def _counts(self) -> list[Metrics]:
        workers = list(self._workers)
        await asyncio.gather(*(worker.update_counts() for worker in workers))
        return [self._ended, *(worker.counts for worker in workers)]
