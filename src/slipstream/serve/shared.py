"""What the HTTP processes of a server share: places for requests, the models, and the counts of all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from slipstream.engines.base import ModelInfo
from slipstream.serve.models import ServedModel


@dataclass(frozen=True)
class ModelEntry:
    """A model of the server, as lists of models show it. `info` is known while it is loaded."""

    name: str
    created: int = 0
    info: ModelInfo | None = None


class Shared(ABC):
    """In the process that serves HTTP, or in the one that started it."""

    @abstractmethod
    async def begin(self) -> None:
        """Load the first model, or connect to the process that does."""

    @abstractmethod
    def admit(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """A place for a request of the holder of an API key. ApiError where there is none."""

    @abstractmethod
    def use(self, name: str | None) -> AbstractAsyncContextManager[ServedModel]:
        """The model of a request, loaded if it must be. No name means the first one."""

    @abstractmethod
    async def status(self) -> str:
        """`ready`, `loading` or `stopping`."""

    @abstractmethod
    async def models(self) -> list[ModelEntry]:
        """All models, in the order of the command line."""

    @abstractmethod
    async def about(self) -> dict[str, Any]:
        """What the page shows of the server: its model, what one may choose from, and counts since the start."""

    @abstractmethod
    async def metrics(self) -> bytes:
        """The metrics of all HTTP processes together."""

    @abstractmethod
    async def close(self) -> None:
        """Free all resources."""
