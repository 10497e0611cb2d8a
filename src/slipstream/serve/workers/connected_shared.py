"""Places, models and counts that the process holds which accepts connections; used by a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from slipstream.engines.process.channel import Channel
from slipstream.engines.process.connected import ConnectedEngine
from slipstream.serve.errors import ApiError
from slipstream.serve.metrics import Metrics
from slipstream.serve.models import ServedModel
from slipstream.serve.shared import ModelEntry, Shared
from slipstream.serve.workers.link import Link


class ConnectedShared(Shared):
    """`stop` is called when the other process wants this one to stop, or has ended."""

    def __init__(self, channel: Channel, metrics: Metrics, stop: Callable[[], None]) -> None:
        handlers: dict[str, Callable[..., Awaitable[Any]]] = {
            "counts": self._counts,
            "connect": self._connect,
            "stop": self._stop,
        }
        self._metrics, self._call_stop = metrics, stop
        self._link = Link(channel, handlers, stop)
        self._engines: dict[str, ConnectedEngine] = {}
        self._connecting = asyncio.Lock()

    async def _counts(self) -> Metrics:
        return self._metrics

    async def _stop(self) -> None:
        self._call_stop()

    async def _connect(self, model: str, address: str) -> None:
        await self.connect(model, address)

    async def begin(self) -> None:
        for model, address in await self._link.ask("engines"):
            await self.connect(model, address)
        await self._link.ask("ready")

    @asynccontextmanager
    async def admit(self, tenant: str) -> AsyncIterator[None]:
        place = await self._link.ask("admit", tenant)
        try:
            yield
        finally:
            await self._leave(place)

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        place, model, address, created = await self._link.ask("use", name)
        try:
            yield ServedModel(model, await self.connect(model, address), created=created)
        finally:
            await self._leave(place)

    async def _leave(self, place: int) -> None:
        with suppress(OSError):  # the other process has ended, or this one is about to
            await self._link.ask("leave", place)

    async def connect(self, model: str, address: str) -> ConnectedEngine:
        """The engine that listens at an address. A new connection takes a while: it loads the tokenizer."""
        async with self._connecting:
            if address not in self._engines:
                try:
                    engine = await asyncio.to_thread(ConnectedEngine, address)
                    await asyncio.to_thread(engine.text.prepare)
                except OSError as error:
                    sentence = f"the process that runs {model} is being started again"
                    raise ApiError(503, sentence, "model", retry_after=5) from error
                self._engines[address] = engine
                asyncio.get_running_loop().add_reader(engine.fileno(), self._read, address, engine)
            return self._engines[address]

    def _read(self, address: str, engine: ConnectedEngine) -> None:
        engine.read()
        if not engine.ready:
            self._disconnect(address)

    def _disconnect(self, address: str) -> None:
        engine = self._engines.pop(address)
        asyncio.get_running_loop().remove_reader(engine.fileno())
        engine.close()

    async def status(self) -> str:
        return str(await self._link.ask("status"))

    async def models(self) -> list[ModelEntry]:
        entries: list[ModelEntry] = await self._link.ask("models")
        return entries

    async def about(self) -> dict[str, Any]:
        about: dict[str, Any] = await self._link.ask("about")
        return about

    async def metrics(self) -> bytes:
        text: bytes = await self._link.ask("metrics")
        return text

    async def close(self) -> None:
        for address in list(self._engines):
            self._disconnect(address)
        self._link.close()
