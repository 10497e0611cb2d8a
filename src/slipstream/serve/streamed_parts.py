"""A response that is sent in parts as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream.serve.streams import ClientGone, SampleStreams

NO_CACHE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamedParts(Response):
    """Sends the parts of an answer as they come. It ends when the client goes away, and gives back what the request
    holds. Starlette's own response for streams takes several times the processor time per part."""

    def __init__(
        self,
        samples: SampleStreams,
        stream: Callable[[Callable[[str], Awaitable[None]]], Awaitable[None]],
        seconds: float,
        stack: AsyncExitStack,
        media_type: str,
    ) -> None:
        self._samples, self._stream, self._seconds, self._stack = samples, stream, seconds, stack
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers(NO_CACHE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # HTTP/1.1 has chunks; where the server has no `write_part`, or the client is slow, parts are sent by ASGI
        write_part = scope.get("state", {}).get("write_part") if scope["http_version"] == "1.1" else None

        async def write(text: str) -> None:
            part = text.encode()
            if part and not (write_part and write_part(part)):
                await send({"type": "http.response.body", "body": part, "more_body": True})

        async with self._stack:
            gone = asyncio.create_task(disconnected(receive))
            gone.add_done_callback(lambda _: self._samples.disconnect())
            clock = asyncio.get_running_loop().call_later(self._seconds, self._samples.expire)
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._stream(write)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except ClientGone:
                return
            finally:
                clock.cancel()
                gone.cancel()


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
