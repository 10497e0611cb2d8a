"""The models of a server: loaded when they are asked for, closed when others need their place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from slipstream.engines import open_engine
from slipstream.engines.base import Engine
from slipstream.engines.process.engine import ProcessEngine
from slipstream.serve.config import ServedEngine, shown_bytes
from slipstream.serve.errors import ApiError

Opener = Callable[[str], Engine]


def opener(settings: ServedEngine) -> Opener:
    """Opens a model by its name, as the command line does."""

    def open_model(name: str) -> Engine:
        how = settings
        if how.plan is not None:
            chosen = partial(open_engine, how.engine, name, options=how.options, plan=how.plan, **how.loading)
        else:
            drafting = (how.drafter, how.verify, how.depth, how.options)
            chosen = partial(open_engine, how.engine, name, *drafting, **how.loading)
        return ProcessEngine(chosen) if how.process else chosen()

    return open_model


def weight_bytes(name: str) -> int:
    """Bytes of a model's weights as safetensors. The model is fetched if it is not here yet."""
    from slipstream.models.sources.catalog import resolve
    from slipstream.models.sources.folder import full_bytes

    return full_bytes(resolve(name).path)


def unknown_model(name: str, names: tuple[str, ...]) -> ApiError:
    return ApiError(404, f"there is no model {name!r}; one of {', '.join(names)}", "model", "model_not_found")


@dataclass
class ServedModel:
    """A model that is loaded, and who uses it."""

    name: str
    engine: Engine
    size: int = 0  # bytes of its weights, where they are counted
    created: int = field(default_factory=lambda: int(time.time()))
    users: int = 0
    last_used: float = field(default_factory=time.monotonic)


class ModelPool:
    """At most `max_loaded` models at once, whose weights take at most `max_memory` bytes. One that is in use is never
    closed."""

    def __init__(
        self,
        names: tuple[str, ...],
        open_model: Opener,
        max_loaded: int = 1,
        max_memory: int | None = None,
        size_of: Callable[[str], int] | None = None,
    ) -> None:
        self.names, self._open, self._most, self._bytes = names, open_model, max_loaded, max_memory
        self._size_of = size_of or weight_bytes
        self._loaded: dict[str, ServedModel] = {}
        self._changes = asyncio.Lock()
        self.closing = False

    @property
    def loaded(self) -> list[ServedModel]:
        return list(self._loaded.values())

    @property
    def ready(self) -> bool:
        """Whether the first model is there, or another in its place, and no model is being started again."""
        return bool(self._loaded) and not self.closing and all(model.engine.ready for model in self._loaded.values())

    async def load(self, name: str) -> ServedModel:
        async with self._changes:
            if name not in self._loaded:
                size = 0 if self._bytes is None else await asyncio.to_thread(self._size_of, name)
                await self._make_room(size)
                engine = await asyncio.to_thread(self._open, name)
                await asyncio.to_thread(engine.text.prepare)
                self._loaded[name] = ServedModel(name, engine, size)
            return self._loaded[name]

    async def _make_room(self, size: int) -> None:
        """For weights of `size` bytes: the models that were idle longest are closed."""
        most = size if self._bytes is None else self._bytes
        if size > most:
            raise ValueError(f"its weights take {shown_bytes(size)}, and the server may use {shown_bytes(most)}")
        while len(self._loaded) >= self._most or sum(model.size for model in self._loaded.values()) + size > most:
            idle = [model for model in self._loaded.values() if not model.users]
            if not idle:
                raise ApiError(503, "all places for models are in use; try again later", "model", retry_after=5)
            oldest = min(idle, key=lambda model: model.last_used)
            del self._loaded[oldest.name]
            await asyncio.to_thread(oldest.engine.close)

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """The model of a request, loaded if it must be. No name means the first one."""
        name = name or self.names[0]
        if name not in self.names:
            raise unknown_model(name, self.names)
        try:
            model = self._loaded.get(name) or await self.load(name)
        except (ValueError, OSError) as error:
            raise ApiError(503, f"{name} cannot be loaded: {error}", "model") from error
        if not model.engine.ready:
            raise ApiError(503, f"the process that runs {name} is being started again", "model", retry_after=5)
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            model.last_used = time.monotonic()

    async def close(self) -> None:
        self.closing = True
        async with self._changes:
            for model in self._loaded.values():
                await asyncio.to_thread(model.engine.close)
            self._loaded.clear()
