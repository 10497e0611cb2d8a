"""One request of the API from admission to its last byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.config import ServerLimits
from slipstream.serve.errors import ApiError, failure_status
from slipstream.serve.models import ServedModel
from slipstream.serve.openai.response_schema import ResponseRequest
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.openai.start import Started
from slipstream.serve.state import ServerState
from slipstream.serve.streams import SampleStreams

NO_CACHE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


B = TypeVar("B", bound=ChatRequest | CompletionRequest | ResponseRequest)


async def respond(
    state: ServerState, http: Request, body: B, start: Callable[[ServedModel, B, ServerLimits, str], Started]
) -> Response:
    """Admit a request, start it, and answer it whole or as a stream."""
    async with AsyncExitStack() as stack:
        tenant = state.enter(stack, http)
        served = await stack.enter_async_context(state.pool.use(body.model))
        state.log_prompt(body)
        started = await asyncio.to_thread(start, served, body, state.limits, tenant)
        stack.callback(started.cancel)
        generation = Generation(state, started)
        if body.stream:
            return StreamingResponse(
                generation.stream(stack.pop_all()), media_type="text/event-stream", headers=NO_CACHE
            )
        return await generation.whole(http)


class Generation:
    """The samples of one request."""

    def __init__(self, state: ServerState, started: Started) -> None:
        self._state, self._writer = state, started.writer
        self._samples = SampleStreams(started.handles, state.wakeups)
        self._timers = [state.metrics.timer() for _ in started.handles]
        self._pieces: list[list[str]] = [[] for _ in started.handles]  # the text of each token

    async def whole(self, http: Request) -> Response:
        gone = asyncio.create_task(_disconnected(http))
        samples = asyncio.create_task(self._read())
        try:
            both: set[asyncio.Future[Any]] = {gone, samples}
            await asyncio.wait(both, timeout=self._state.limits.max_seconds, return_when="FIRST_COMPLETED")
            if not samples.done():
                if gone.done():
                    return Response(status_code=499)
                raise ApiError(408, f"the request took more than {self._state.limits.max_seconds:g} seconds")
            completions = samples.result()
        finally:
            gone.cancel()
            samples.cancel()
        self._check(completions)
        self._count(completions)
        return JSONResponse(self._writer.whole(completions, self._pieces))

    async def _read(self) -> list[Completion]:
        async for batch in self._samples.batches():
            for index, chunk in batch:
                self._timers[index].chunk(chunk)
                self._pieces[index] += chunk.pieces
        return self._samples.completions

    def _check(self, completions: Sequence[Completion]) -> None:
        for sample in completions:
            if sample.finish_reason == "error":
                raise ApiError(failure_status(sample.error), sample.error or "the engine failed")
            if sample.finish_reason == "cancelled":
                raise ApiError(503, "the server is shutting down", retry_after=5)

    def _count(self, completions: Sequence[Completion]) -> None:
        for index, (sample, timer) in enumerate(zip(completions, self._timers, strict=True)):
            timer.done(sample, prompt=index % self._writer.n == 0)

    async def stream(self, stack: AsyncExitStack) -> AsyncIterator[str]:
        """Server-sent events; `stack` gives back what the request holds when the client has all of it, or goes away."""
        async with stack:
            try:
                async for event in self._events():
                    yield event
            except TimeoutError:
                sentence = f"the request took more than {self._state.limits.max_seconds:g} seconds"
                yield "".join(self._writer.failure(408, sentence))

    async def _events(self) -> AsyncIterator[str]:
        """Each part holds the events of all chunks that were there, so that one write sends them."""
        yield "".join(self._writer.begin())
        async for batch in self._samples.batches(self._state.limits.max_seconds):
            events: list[str] = []
            for index, chunk in batch:
                self._timers[index].chunk(chunk)
                if chunk.finish_reason in ("error", "cancelled"):
                    yield "".join([*events, *self._failure(chunk)])
                    return
                events += self._writer.cycle(index, chunk)
            yield "".join(events)
        completions = self._samples.completions
        self._count(completions)
        yield "".join(self._writer.end(completions))

    def _failure(self, chunk: Chunk) -> Iterator[str]:
        if chunk.finish_reason == "cancelled":
            return self._writer.failure(503, "the server is shutting down")
        return self._writer.failure(failure_status(chunk.error), chunk.error or "the engine failed")


async def _disconnected(http: Request) -> None:
    """Wait until the client is gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
