"""One request of the API from admission to its last byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from slipstream.engines.base import Chunk, Completion, RequestHandle
from slipstream.engines.prompt import Prompt, encode
from slipstream.serve.errors import ApiError, error_body
from slipstream.serve.openai import convert
from slipstream.serve.openai.answers import Answer, Echo
from slipstream.serve.openai.logprobs import prompt_pieces
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.state import ServerState
from slipstream.serve.streams import AsyncRequest

DONE = "data: [DONE]\n\n"


async def respond(state: ServerState, http: Request, body: ChatRequest | CompletionRequest) -> Response:
    """Admit a request, start it, and answer it whole or as a stream."""
    async with AsyncExitStack() as stack:
        state.enter(stack, http)
        served = await stack.enter_async_context(state.pool.use(body.model))
        prompts: list[Prompt]
        if isinstance(body, ChatRequest):
            prompts = [[message.plain() for message in body.messages]]
            tokens, raw = convert.chat_tokens(body, served.engine), False
        else:
            prompts, raw = convert.prompts(body), True
            tokens = convert.COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
            check_completion(body)
        if body.stream and body.prompt_logprobs is not None:
            raise ApiError(400, "prompt_logprobs are not streamed; leave out stream", "prompt_logprobs")
        n = body.n or 1
        if len(prompts) * n > state.limits.max_samples:
            raise ApiError(400, f"prompts times n is {len(prompts) * n}; it must be {state.limits.max_samples} or less")
        handles = await asyncio.to_thread(_submit, served.engine, prompts, body, tokens, raw)
        stack.callback(_cancel, handles)
        answer = Answer(
            served.name,
            served.engine.text,
            isinstance(body, ChatRequest),
            n,
            convert.logprobs(body),
            body.prompt_logprobs,
            token_ids=body.return_token_ids,
        )
        generation = Generation(state, answer, handles, body, _echoes(body, prompts, served.engine, n))
        if body.stream:
            return StreamingResponse(
                generation.stream(stack.pop_all()), media_type="text/event-stream", headers=NO_CACHE
            )
        return await generation.whole(http)


NO_CACHE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def check_completion(body: CompletionRequest) -> None:
    if body.suffix:
        raise ApiError(
            400, "suffix is not offered; put what follows into the prompt as the model's template wants it", "suffix"
        )
    if body.best_of not in (None, body.n or 1):
        raise ApiError(400, "best_of is not offered; use n", "best_of")


def _submit(
    engine: Any, prompts: Sequence[Prompt], body: ChatRequest | CompletionRequest, tokens: int, raw: bool
) -> list[RequestHandle]:
    handles: list[RequestHandle] = []
    try:
        sampling, options = convert.sampling(body), convert.options(body, engine, tokens, raw)
        for prompt in prompts:
            handles += engine.submit(prompt, sampling, options)
    except (ValueError, OverflowError) as error:
        _cancel(handles)
        raise ApiError(400, str(error)) from error
    return handles


def _cancel(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        handle.cancel()


def _echoes(body: ChatRequest | CompletionRequest, prompts: Sequence[Prompt], engine: Any, n: int) -> list[Echo]:
    """What stands before each sample: its prompt, where that was asked for."""
    if isinstance(body, ChatRequest) or not body.echo:
        return [Echo()] * (len(prompts) * n)
    echoes = []
    for prompt in prompts:
        text = prompt if isinstance(prompt, str) else engine.text.decode(prompt)
        tokens = [] if body.logprobs is None else encode(prompt, True, engine.text)
        echoes += [Echo(text, tokens, prompt_pieces(engine.text, tokens, text))] * n
    return echoes


class Generation:
    """The samples of one request."""

    def __init__(
        self,
        state: ServerState,
        answer: Answer,
        handles: Sequence[RequestHandle],
        body: ChatRequest | CompletionRequest,
        echoes: Sequence[Echo],
    ) -> None:
        self._state, self._answer, self._echoes = state, answer, echoes
        self._requests = [AsyncRequest(handle) for handle in handles]
        self._timers = [state.metrics.timer() for _ in handles]
        self._pieces: list[list[str]] = [[] for _ in handles]  # the text of each token
        self._offsets = [len(echo.text) for echo in echoes]  # where the next text of each sample begins
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
            yield _line(self._answer.event(index, chunk, self._offsets[index]))
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
