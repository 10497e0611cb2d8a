"""A request that runs in the process of an engine."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from slipstream.core.types import Origin, Request
from slipstream.engines.job import DecodingPlan, Emission, Job
from slipstream.models.text.detokenizer import Detokenizer

ORIGINS: dict[str, Origin] = {origin.value: origin for origin in Origin}
UNKNOWN = DecodingPlan("", "", None)  # the other process plans how it is decoded


class RemoteJob(Job):
    """One sample. Its output comes from the other process, and its text is decoded where it is read."""

    def __init__(
        self, request: Request, decoder: Detokenizer, prompt_logprobs: int | None, send_cancel: Callable[[], None]
    ) -> None:
        super().__init__(request, UNKNOWN, decoder, prompt_logprobs=prompt_logprobs)
        self._send_cancel, self._accepted = send_cancel, False
        self.streamed = True  # chunks come whoever reads them, and the last may be cut at a stop string
        self._refusal: Exception | None = None

    def accepted(self) -> bool:
        if self._refusal is not None:
            raise self._refusal
        return self._accepted

    def accept(self, refusal: Exception | None = None) -> None:
        """The other process has accepted the request, or refused it."""
        self._accepted, self._refusal = True, refusal
        if refusal is not None:
            self.end("error", str(refusal))
        elif self._ready is not None:
            self._ready()

    def cancel(self) -> None:
        if not self.cancelled and not self.done:
            self.cancelled = True
            self._send_cancel()

    def receive(self, tokens: Any, origins: Any, rest: bytes | None) -> bool:
        """Take the output of a cycle; False where it was the last."""
        if rest is None:
            origins = [ORIGINS[origin] for origin in origins]
            item: Any = Emission(tokens, origins)
        else:
            item, end = pickle.loads(rest)
            tokens, origins = item.token_ids, item.origins
            if item.prompt_logprobs:
                self.prompt_logprobs = list(item.prompt_logprobs)
            if end is not None:
                self.stats, self.guarantee, self.queue_seconds = end
                self.row.finish_reason, self.error = item.finish_reason, item.error
        self.row.tokens += tokens
        self.row.origins += origins
        self._send(item)
        return item.finish_reason is None
