"""Who may ask, and how much at once: API keys, the length of the queue, the size of a body."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.serve.config import ServerLimits
from slipstream.serve.errors import ApiError, error_body

AUDIO = "/v1/audio/"  # paths whose bodies hold audio
DRAIN_SECONDS, DRAIN_TIMES = 5.0, 16  # how long, and how many times the limit, a body that is too large is read


class ApiKeys:
    """The legal API keys of a server. Without any, everybody may ask."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    def tenant(self, authorization: str | None) -> str:
        """A name for the holder of the API key of a request that is not the key. Every legal key is compared, each in
        constant time."""
        if not self._keys:
            return ""
        given = (authorization or "").removeprefix("Bearer ").strip().encode()
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if not any(matches):
            raise ApiError(
                401, "the API key is missing or wrong; send it as Authorization: Bearer KEY", None, "invalid_api_key"
            )
        return f"key {matches.index(True) + 1}"


class Admission:
    """Counts requests under way. Beyond the limits a request is refused at once, with a time to try again."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits, self._active = limits, Counter[str]()

    @property
    def active(self) -> int:
        return self._active.total()

    @contextmanager
    def admit(self, tenant: str) -> Iterator[None]:
        """A place for a request of the holder of an API key."""
        limits = self._limits
        if self.active >= limits.max_requests or self._active[tenant] >= limits.max_requests_per_key:
            raise ApiError(
                429, "too many requests are under way; try again in a second", code="queue_full", retry_after=1
            )
        self._active[tenant] += 1
        try:
            yield
        finally:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]


class BodyLimit:
    """Refuse bodies that are too large before they are read into memory, and bodies that come too slowly."""

    def __init__(self, app: ASGIApp, max_body: int, seconds: float, max_audio: int) -> None:
        self._app, self._most, self._seconds, self._audio = app, max_body, seconds, max_audio

    def _limit(self, scope: Scope) -> int:
        return self._audio if scope["path"].startswith(AUDIO) else self._most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._limit(scope)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > most:
            await self._refuse_large(scope, receive, send)
            return
        read, more, late = 0, True, False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def limited() -> Message:
            """A body ends where it becomes too long or takes too long, as if the client had gone away."""
            nonlocal read, more, late
            try:
                async with asyncio.timeout_at(deadline if more else None):
                    message = await receive()
            except TimeoutError:
                late = True
                return {"type": "http.disconnect"}
            read, more = read + len(message.get("body", b"")), message.get("more_body", False)
            return message if read <= most else {"type": "http.disconnect"}

        async def answered(message: Message) -> None:
            if read <= most and not late:
                await send(message)

        await self._app(scope, limited, answered)
        if late:
            sentence = f"the request did not arrive within {self._seconds:g} seconds"
            await JSONResponse(error_body(408, sentence), 408, {"Connection": "close"})(scope, receive, send)
        elif read > most:
            await self._refuse_large(scope, receive, send, more)

    async def _refuse_large(self, scope: Scope, receive: Receive, send: Send, more: bool = True) -> None:
        """Read on for a while before the answer: a client that is cut off while it sends never sees why. `more`: the
        body is not at its end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                drained = 0
                while more and drained < DRAIN_TIMES * self._limit(scope):
                    message = await receive()
                    drained, more = drained + len(message.get("body", b"")), message.get("more_body", False)
        sentence = f"the request is larger than {self._limit(scope)} bytes, which is the most this server takes"
        await JSONResponse(error_body(413, sentence), 413, {"Connection": "close"})(scope, receive, send)
