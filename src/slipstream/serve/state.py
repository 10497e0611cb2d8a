"""What the parts of a running server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Request

from slipstream.kernels.energy_counter import NoCounter, gpu_counter
from slipstream.kernels.energy_sources import Rapl
from slipstream.serve.admission import Admission
from slipstream.serve.config import ServerConfig, ServerLimits
from slipstream.serve.errors import ApiError
from slipstream.serve.logs import note
from slipstream.serve.metrics import Metrics
from slipstream.serve.models import ModelPool, Opener, opener
from slipstream.serve.streams import Wakeups

T = TypeVar("T")
START_THREADS = 4  # each keeps the memory of the largest prompt that it encoded
PROMPT_FIELDS = {"system", "prompt", "messages", "instructions", "input"}


def energy_readers() -> dict[str, Callable[[], float]]:
    """Joules from now on, of the GPU and of the processor, where they have counters."""
    readers: dict[str, Callable[[], float]] = {}
    counters: dict[str, Callable[[], Callable[[], float]]] = {"GPU": gpu_counter, "CPU": lambda: Rapl().read}
    for name, open_counter in counters.items():
        try:
            readers[name] = _from_now_on(open_counter())
        except NoCounter:
            continue
    return readers


def _from_now_on(read: Callable[[], float]) -> Callable[[], float]:
    start = read()
    return lambda: read() - start


class ServerState:
    def __init__(self, config: ServerConfig, open_model: Opener | None = None) -> None:
        self.config, self.metrics = config, Metrics()
        open_model = open_model or opener(config.engine)
        self.pool = ModelPool(config.models, open_model, config.max_loaded, config.max_memory)
        self.admission = Admission(config.limits, config.api_keys)
        self.wakeups = Wakeups()
        self._threads = ThreadPoolExecutor(START_THREADS, thread_name_prefix="slipstream-start")
        watch = self.metrics.watch
        watch("num_requests_running", "Rows that decode.", lambda: self._sum("running"))
        watch("num_requests_waiting", "Requests that wait for a row.", lambda: self._sum("waiting"))
        watch("num_requests_active", "Requests under way or waiting.", lambda: self.admission.active)

        watch("kv_cache_usage_perc", "Share of the KV cache's places in use.", lambda: self._largest("cache_use"))
        watch("prefix_cache_hits", "Requests that began with a kept prefix.", lambda: self._sum("prefix_hits"))
        watch("prefix_cache_tokens", "Prompt tokens from kept prefixes.", lambda: self._sum("prefix_tokens_reused"))
        watch("prefix_cache_bytes", "Memory of kept prefixes.", lambda: self._sum("retained_bytes"))
        watch("models_loaded", "Models in memory.", lambda: len(self.pool.loaded))
        self._energy = energy_readers()
        for name, read in self._energy.items():
            watch(f"{name.lower()}_energy_joules", f"Energy of the {name} since the server started.", read)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """What takes a while before a request is under way, such as long prompts and grammars."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def close(self) -> None:
        await self.pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def joules(self) -> float | None:
        """Energy since the server started, of all counters; None where there is none."""
        return sum(read() for read in self._energy.values()) if self._energy else None

    @property
    def limits(self) -> ServerLimits:
        return self.config.limits

    def _sum(self, name: str) -> float:
        return float(sum(model.engine.stats.get(name, 0) for model in self.pool.loaded))

    def _largest(self, name: str) -> float:
        return max((float(model.engine.stats.get(name, 0)) for model in self.pool.loaded), default=0.0)

    def log_prompt(self, body: Any) -> None:
        """Into the line of the request, where the server was asked to."""
        if self.config.log_prompts:
            note(**body.model_dump(include=PROMPT_FIELDS, exclude_none=True))

    def enter(self, stack: AsyncExitStack, http: Request) -> str:
        """Admit a request, or refuse it in a sentence. `stack` holds its place. Returns whose request it is."""
        key = self.admission.key(http.headers.get("authorization"))
        if self.pool.closing:
            raise ApiError(503, "the server is shutting down", retry_after=5)
        try:
            stack.enter_context(self.admission.admit(key))
        except ApiError:
            self.metrics.reject()
            raise
        return self.admission.tenant(key)
