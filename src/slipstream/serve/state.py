"""What the parts of a running server share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request

from slipstream.serve.admission import Admission
from slipstream.serve.config import ServerConfig, ServerLimits
from slipstream.serve.errors import ApiError
from slipstream.serve.logs import note
from slipstream.serve.metrics import Metrics
from slipstream.serve.models import ModelPool, Opener, opener
from slipstream.serve.streams import Wakeups

PROMPT_FIELDS = {"system", "prompt", "messages", "instructions", "input"}


class ServerState:
    def __init__(self, config: ServerConfig, open_model: Opener | None = None) -> None:
        self.config, self.metrics = config, Metrics()
        self.pool = ModelPool(config.models, open_model or opener(config.engine), config.max_loaded)
        self.admission = Admission(config.limits, config.api_keys)
        self.wakeups = Wakeups()
        watch = self.metrics.watch
        watch("num_requests_running", "Rows that decode.", lambda: self._sum("running"))
        watch("num_requests_waiting", "Requests that wait for a row.", lambda: self._sum("waiting"))
        watch("num_requests_active", "Requests under way or waiting.", lambda: self.admission.active)

    @property
    def limits(self) -> ServerLimits:
        return self.config.limits

    def _sum(self, name: str) -> float:
        return float(sum(model.engine.stats.get(name, 0) for model in self.pool.loaded))

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
