"""Places, models and counts, held by this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from slipstream.kernels.energy_counter import NoCounter, gpu_counter
from slipstream.kernels.energy_sources import Rapl
from slipstream.serve.admission import Admission
from slipstream.serve.config import ServerConfig
from slipstream.serve.errors import ApiError
from slipstream.serve.metrics import MetricGauge, Metrics, write_metrics
from slipstream.serve.models import ModelPool, Opener, ServedModel, opener
from slipstream.serve.shared import ModelEntry, Shared


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


class LocalShared(Shared):
    """`counts` gives the counts of every HTTP process."""

    def __init__(
        self,
        config: ServerConfig,
        open_model: Opener | None,
        counts: Callable[[], Awaitable[Sequence[Metrics]]],
    ) -> None:
        self._config, self._counts = config, counts
        self.pool = ModelPool(config.models, open_model or opener(config.engine), config.max_loaded, config.max_memory)
        self._admission = Admission(config.limits)
        self._energy = energy_readers()

    async def begin(self) -> None:
        await self.pool.load(self._config.models[0])

    @asynccontextmanager
    async def admit(self, tenant: str) -> AsyncIterator[None]:
        if self.pool.closing:
            raise ApiError(503, "the server is shutting down", retry_after=5)
        with self._admission.admit(tenant):
            yield

    def use(self, name: str | None) -> AbstractAsyncContextManager[ServedModel]:
        return self.pool.use(name)

    async def status(self) -> str:
        return "ready" if self.pool.ready else "stopping" if self.pool.closing else "loading"

    async def models(self) -> list[ModelEntry]:
        loaded = {model.name: ModelEntry(model.name, model.created, model.engine.model_info) for model in self._loaded}
        return [loaded.get(name, ModelEntry(name)) for name in self.pool.names]

    @property
    def _loaded(self) -> list[ServedModel]:
        return self.pool.loaded

    async def about(self) -> dict[str, Any]:
        about: dict[str, Any] = {"ready": self.pool.ready, "model": self.pool.names[0]}
        about |= {"drafter": self._config.engine.drafter, "drafters": [], "rules": [], "stats": {}}
        if not self._loaded:
            return about
        first = self._loaded[0]
        offered = first.engine.capabilities
        drafters = [name for name in offered.drafters if name not in ("none", "draft_model", "table")]
        return about | {
            "model": first.name,
            "label": first.engine.label,
            "drafters": drafters,
            "rules": list(offered.rules),
            "logprobs": offered.logprobs and "logprobs" not in offered.not_drafting,
            "stats": first.engine.stats,
            "joules": sum(read() for read in self._energy.values()) if self._energy else None,
        }

    async def metrics(self) -> bytes:
        return write_metrics(await self._counts(), self._gauges())

    def _gauges(self) -> list[MetricGauge]:
        gauges = [
            MetricGauge("num_requests_running", "Rows that decode.", self._sum("running")),
            MetricGauge("num_requests_waiting", "Requests that wait for a row.", self._sum("waiting")),
            MetricGauge("num_requests_active", "Requests under way or waiting.", self._admission.active),
            MetricGauge(
                "kv_cache_usage_perc",
                "Share of the KV cache's places in use.",
                max((float(model.engine.stats.get("cache_use", 0)) for model in self._loaded), default=0.0),
            ),
            MetricGauge("num_preemptions", "Requests that had to wait again for room.", self._sum("preemptions")),
            MetricGauge("prefix_cache_hits", "Requests that began with a kept prefix.", self._sum("prefix_hits")),
            MetricGauge("prefix_cache_tokens", "Prompt tokens from kept prefixes.", self._sum("prefix_tokens_reused")),
            MetricGauge("prefix_cache_bytes", "Memory of kept prefixes.", self._sum("retained_bytes")),
            MetricGauge("models_loaded", "Models in memory.", len(self._loaded)),
        ]
        for name, read in self._energy.items():
            about = f"Energy of the {name} since the server started."
            gauges.append(MetricGauge(f"{name.lower()}_energy_joules", about, read()))
        return gauges

    def _sum(self, name: str) -> float:
        return float(sum(model.engine.stats.get(name, 0) for model in self._loaded))

    async def close(self) -> None:
        await self.pool.close()
