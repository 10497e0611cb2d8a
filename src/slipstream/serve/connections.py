"""Connections: closed where no whole request arrives in time, and written to directly while an answer is streamed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


class RequestTimeout:
    """Closes connections of slow clients, which could take all descriptors. Goes before a protocol of uvicorn. The
    clock runs from the connection, or from the first byte of a later request, to the end of the request's headers.
    `BodyLimit` sees to the body."""

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


class PartWriter:
    """Writes the parts of a chunked body to the socket. uvicorn's own way through its HTTP library takes several times
    as long. Goes before a protocol of uvicorn, and hands `write_part` to the application in the scope's state."""

    app_state: dict[str, Any]  # of uvicorn
    transport: asyncio.Transport
    flow: Any
    cycle: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.app_state = {**self.app_state, "write_part": self.write_part}

    def connection_lost(self, error: Exception | None) -> None:
        self.app_state = {}  # no circle: a connection is freed at once
        super().connection_lost(error)  # type: ignore[misc]

    def write_part(self, part: bytes) -> bool:
        """Write a part of the body of an answer that has begun. False: it must be sent in the usual way, which waits
        for clients that are slow and notices those that are gone."""
        if self.flow.write_paused or self.cycle.disconnected or self.transport.is_closing():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, with so many seconds for the headers of a request."""
    return type("TimedProtocol", (RequestTimeout, PartWriter, AutoHTTPProtocol), {"seconds": seconds})
