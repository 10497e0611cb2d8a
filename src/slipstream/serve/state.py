"""What the parts of one HTTP process share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request

from slipstream.serve.admission import ApiKeys
from slipstream.serve.config import ServerConfig, ServerLimits
from slipstream.serve.errors import ApiError
from slipstream.serve.logs import note
from slipstream.serve.metrics import Metrics, RequestTimer
from slipstream.serve.models import ServedModel
from slipstream.serve.shared import Shared
from slipstream.serve.streams import Wakeups

T = TypeVar("T")
START_THREADS = 4  # each keeps the memory of the largest prompt that it encoded
PROMPT_FIELDS = {"system", "prompt", "messages", "instructions", "input"}


class ServerState:
    def __init__(self, config: ServerConfig, shared: Shared, metrics: Metrics) -> None:
        self.config, self.shared, self.metrics = config, shared, metrics
        self.keys, self.wakeups = ApiKeys(config.api_keys), Wakeups()
        self._threads = ThreadPoolExecutor(START_THREADS, thread_name_prefix="slipstream-start")

    async def in_thread(self, call: Callable[[], T]) -> T:
        """What takes a while before a request is under way, such as long prompts and grammars."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def close(self) -> None:
        await self.shared.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def limits(self) -> ServerLimits:
        return self.config.limits

    def timer(self) -> RequestTimer:
        return RequestTimer(self.metrics)

    def log_prompt(self, body: Any) -> None:
        """Into the line of the request, where the server was asked to."""
        if self.config.log_prompts:
            note(**body.model_dump(include=PROMPT_FIELDS, exclude_none=True))

    def check_key(self, http: Request) -> str:
        """Whose request it is. ApiError where its API key is wrong."""
        return self.keys.tenant(http.headers.get("authorization"))

    async def enter(self, stack: AsyncExitStack, http: Request) -> str:
        """Admit a request, or refuse it in a sentence. `stack` holds its place. Returns whose request it is."""
        tenant = self.check_key(http)
        try:
            await stack.enter_async_context(self.shared.admit(tenant))
        except ApiError:
            self.metrics.reject()
            raise
        return tenant

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """The model of a request, loaded if it must be."""
        async with self.shared.use(name) as served:
            note(model=served.name)
            yield served
