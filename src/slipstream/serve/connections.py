"""Connections on which no whole request arrives in time are closed: else slow clients could take all descriptors."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


class RequestTimeout:
    """Goes before a protocol of uvicorn. The clock runs from the connection, or from the first byte of a later request,
    to the end of the request's headers. `BodyLimit` sees to the body."""

    seconds: float
    cycle: Any  # of uvicorn: the request under way, or the last one
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._watch(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._watch(self.transport)  # type: ignore[attr-defined]

    def connection_lost(self, error: Exception | None) -> None:
        self._stop()
        super().connection_lost(error)  # type: ignore[misc]

    def _watch(self, transport: asyncio.Transport) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._clock is None:
            self._clock = asyncio.get_running_loop().call_later(self.seconds, transport.close)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, with so many seconds for the headers of a request."""
    return type("TimedProtocol", (RequestTimeout, AutoHTTPProtocol), {"seconds": seconds})
