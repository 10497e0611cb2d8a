"""One request of the API from admission to its last byte."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.config import ServerLimits
from slipstream.serve.errors import ApiError, failure_status
from slipstream.serve.logs import note
from slipstream.serve.models import ServedModel
from slipstream.serve.openai.start import Started
from slipstream.serve.state import ServerState
from slipstream.serve.streamed_parts import StreamedParts, disconnected
from slipstream.serve.streams import ClientGone, SampleStreams

logger = logging.getLogger("slipstream.serve")
QUICK_BYTES = 1 << 13  # of a request whose prompt is encoded in well under a millisecond
SHUTDOWN = "the server is shutting down"


class GenerationBody(Protocol):
    """What the requests of all APIs have in common."""

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool | None: ...


B = TypeVar("B", bound=GenerationBody)


async def respond(
    state: ServerState,
    http: Request,
    body: B,
    start: Callable[[ServedModel, B, ServerLimits, str], Started],
    model: str | None = None,
) -> Response:
    """Admit a request, start it, and answer it whole or as a stream. `model` is its name where `body.model` has another
    form."""
    async with AsyncExitStack() as stack:
        tenant = await state.enter(stack, http)
        served = await stack.enter_async_context(state.use(model or body.model))
        state.log_prompt(body)
        begin = partial(start, served, body, state.limits, tenant)
        started = begin() if _quick(served, http, body) else await state.in_thread(begin)
        stack.callback(started.cancel)
        generation = Generation(state, started)
        await generation.accepted()
        return generation.streamed(stack.pop_all()) if body.stream else await generation.whole(http)


def _quick(served: ServedModel, http: Request, body: GenerationBody) -> bool:
    """Whether a request starts at once: its prompt is short, and nothing is compiled in this process."""
    size = http.headers.get("content-length", "")
    short = size.isdigit() and int(size) <= QUICK_BYTES
    return short and served.engine.start_is_quick and not getattr(body, "tools", None)


class Generation:
    """The samples of one request."""

    def __init__(self, state: ServerState, started: Started) -> None:
        self._state, self._writer = state, started.writer
        self._samples = SampleStreams(started.handles, state.wakeups)
        self._timers = [state.timer() for _ in started.handles]
        self._pieces: list[list[str]] = [[] for _ in started.handles]  # the text of each token

    async def accepted(self) -> None:
        """Wait until the engine has accepted the request. ApiError where it refuses it."""
        try:
            await self._samples.accepted()
        except (ValueError, OverflowError) as error:
            raise ApiError(400, str(error)) from error

    @property
    def _too_long(self) -> str:
        return f"the request took more than {self._state.limits.max_seconds:g} seconds"

    def streamed(self, stack: AsyncExitStack) -> StreamedParts:
        """The answer as a stream; `stack` gives back what the request holds at its end."""
        return StreamedParts(self._samples, self.stream, self._state.limits.max_seconds, stack, self._writer.media_type)

    async def whole(self, http: Request) -> Response:
        gone = asyncio.create_task(disconnected(http.receive))
        gone.add_done_callback(lambda _: self._samples.disconnect())
        clock = asyncio.get_running_loop().call_later(self._state.limits.max_seconds, self._samples.expire)
        try:
            while not self._samples.over:
                for index, chunk in await self._samples.batch():
                    self._time(index, chunk)
                    self._pieces[index] += chunk.pieces
        except ClientGone:
            return Response(status_code=499)
        except TimeoutError as error:
            raise ApiError(408, self._too_long) from error
        finally:
            clock.cancel()
            gone.cancel()
        completions = self._samples.completions
        for sample in completions:
            if sample.finish_reason in ("error", "cancelled"):
                raise _failure(sample)
        self._count(completions)
        return JSONResponse(self._writer.whole(completions, self._pieces))

    async def stream(self, write: Callable[[str], Awaitable[None]]) -> None:
        """Write the answer in parts: each has the events of all chunks that were there, so that one write sends them.
        The first part has the events before the first cycle, too. What goes wrong becomes the last event."""
        part = ""
        try:
            part = self._writer.begin()
            while not self._samples.over:
                for index, chunk in await self._samples.batch():
                    self._time(index, chunk)
                    if chunk.finish_reason in ("error", "cancelled"):
                        failure = _failure(chunk)
                        await write(part + self._writer.failure(failure.status, failure.message))
                        return
                    part += self._writer.cycle(index, chunk)
                if not self._samples.over:
                    await write(part)
                    part = ""
            completions = self._samples.completions
            self._count(completions)
            await write(part + self._writer.end(completions))
        except TimeoutError:
            await write(part + self._writer.failure(408, self._too_long))
        except ClientGone:
            raise
        except Exception as error:
            logger.exception("a stream failed")
            note(error=repr(error))
            await write(part + self._writer.failure(500, f"the server failed: {error!r}"))

    def _time(self, index: int, chunk: Chunk) -> None:
        self._writer.first_chunk = self._writer.first_chunk or time.perf_counter()
        self._timers[index].chunk(chunk)

    def _count(self, completions: Sequence[Completion]) -> None:
        for index, (sample, timer) in enumerate(zip(completions, self._timers, strict=True)):
            timer.done(sample, prompt=index % self._writer.n == 0)


def _failure(ended: Chunk | Completion) -> ApiError:
    """What a client is told of a sample that failed."""
    if ended.finish_reason == "cancelled":
        return ApiError(503, SHUTDOWN, retry_after=5)
    return ApiError(failure_status(ended.error), ended.error or "the engine failed")
