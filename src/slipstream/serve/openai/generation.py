"""One request of the API from admission to its last byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.errors import ApiError, error_body
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.openai.start import Started, start
from slipstream.serve.openai.tool_parser import Said
from slipstream.serve.state import ServerState
from slipstream.serve.streams import AsyncRequest

DONE = "data: [DONE]\n\n"


async def respond(state: ServerState, http: Request, body: ChatRequest | CompletionRequest) -> Response:
    """Admit a request, start it, and answer it whole or as a stream."""
    async with AsyncExitStack() as stack:
        state.enter(stack, http)
        served = await stack.enter_async_context(state.pool.use(body.model))
        state.log_prompt(body)
        started = await asyncio.to_thread(start, served, body, state.limits)
        stack.callback(started.cancel)
        generation = Generation(state, started, body)
        if body.stream:
            return StreamingResponse(
                generation.stream(stack.pop_all()), media_type="text/event-stream", headers=NO_CACHE
            )
        return await generation.whole(http)


NO_CACHE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Generation:
    """The samples of one request."""

    def __init__(self, state: ServerState, started: Started, body: ChatRequest | CompletionRequest) -> None:
        self._state, self._answer, self._echoes = state, started.answer, started.echoes
        handles, use = started.handles, started.answer.tools
        self._requests = [AsyncRequest(handle) for handle in handles]
        self._parsers = [use.parser() for _ in handles] if use else []
        self._timers = [state.metrics.timer() for _ in handles]
        self._pieces: list[list[str]] = [[] for _ in handles]  # the text of each token
        self._offsets = [len(echo.text) for echo in self._echoes]  # where the next text of each sample begins
        streamed = body.stream_options
        self._want_usage = streamed is not None and streamed.include_usage

    async def whole(self, http: Request) -> Response:
        gone = asyncio.create_task(_disconnected(http))
        samples: asyncio.Future[list[Completion]] = asyncio.ensure_future(
            asyncio.gather(*map(self._read, range(len(self._requests))))
        )
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
        return JSONResponse(self._answer.whole(completions, self._echoes, self._pieces))

    async def _read(self, index: int) -> Completion:
        request = self._requests[index]
        async for chunk in request.chunks():
            self._timers[index].chunk(chunk)
            self._pieces[index] += chunk.pieces
        return request.completion

    def _check(self, completions: Sequence[Completion]) -> None:
        for sample in completions:
            if sample.finish_reason == "error":
                raise ApiError(500, sample.error or "the engine failed")
            if sample.finish_reason == "cancelled":
                raise ApiError(503, "the server is shutting down", retry_after=5)

    def _count(self, completions: Sequence[Completion]) -> None:
        for index, (sample, timer) in enumerate(zip(completions, self._timers, strict=True)):
            timer.done(sample, prompt=index % self._answer.n == 0)

    async def stream(self, stack: AsyncExitStack) -> AsyncIterator[str]:
        """Server-sent events; `stack` gives back what the request holds when the client has all of it, or goes away."""
        async with stack:
            try:
                async for event in self._events():
                    yield event
            except TimeoutError:
                sentence = f"the request took more than {self._state.limits.max_seconds:g} seconds"
                yield _line(error_body(408, sentence))
            yield DONE

    async def _events(self) -> AsyncIterator[str]:
        for index, echo in enumerate(self._echoes):
            if self._answer.chat:
                yield _line(self._answer.first(index))
            elif echo.text and not echo.tokens:
                yield _line(self._answer.echo(index, echo))
        async for index, chunk in self._merged():
            self._timers[index].chunk(chunk)
            if chunk.finish_reason == "error":
                yield _line(error_body(500, chunk.error or "the engine failed"))
                return
            if chunk.finish_reason == "cancelled":
                yield _line(error_body(503, "the server is shutting down"))
                return
            if chunk.prompt_logprobs:
                yield _line(self._answer.echo(index, self._echoes[index], chunk.prompt_logprobs))
            last = chunk.finish_reason is not None
            said = self._parsers[index].feed(chunk.text, last) if self._parsers else Said(chunk.text)
            yield _line(self._answer.event(index, chunk, said, self._offsets[index]))
            self._offsets[index] += len(chunk.text)
        completions = [request.completion for request in self._requests]
        self._count(completions)
        if self._want_usage:
            yield _line(self._answer.last(completions))

    async def _merged(self) -> AsyncIterator[tuple[int, Chunk]]:
        """Chunks of all samples as they come."""
        seconds = self._state.limits.max_seconds
        if len(self._requests) == 1:
            async for chunk in self._requests[0].chunks(seconds):
                yield 0, chunk
            return
        ready: asyncio.Queue[tuple[int, Chunk | None]] = asyncio.Queue()  # None: it took too long

        async def pump(index: int, request: AsyncRequest) -> None:
            try:
                async for chunk in request.chunks(seconds):
                    ready.put_nowait((index, chunk))
            except TimeoutError:
                ready.put_nowait((index, None))

        pumps = [asyncio.create_task(pump(index, request)) for index, request in enumerate(self._requests)]
        left = len(pumps)
        try:
            while left:
                index, new = await ready.get()
                if new is None:
                    raise TimeoutError
                yield index, new
                left -= new.finish_reason is not None
        finally:
            for task in pumps:
                task.cancel()


def _line(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _disconnected(http: Request) -> None:
    """Wait until the client is gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
