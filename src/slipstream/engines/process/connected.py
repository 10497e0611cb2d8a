"""An engine in a process that another process of the same server has started."""

from __future__ import annotations

import socket

from slipstream.engines.process.channel import Channel
from slipstream.engines.process.remote import CLOSED, RemoteEngine

ENDED = "the engine's process ended; it is started again"


class ConnectedEngine(RemoteEngine):
    """Connects to the `address` of a `ProcessEngine`. OSError where that process has ended.

    Its owner calls `read` whenever `fileno` can be read, from the thread that reads the chunks of requests. So no other
    thread takes part."""

    def __init__(self, address: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX)
        self._connection = Channel(connection)
        try:
            connection.connect(address)
            message = self._connection.receive()
        except OSError:
            self._connection.close()
            raise
        if message is None:
            self._connection.close()
            raise ConnectionResetError(ENDED)
        _, self._about = message
        self._ready = True

    @property
    def _channel(self) -> Channel:
        return self._connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def read(self) -> None:
        """Take the messages that are there. Where the process has ended, all requests end, and `ready` is False."""
        messages, is_open = self._connection.receive_available()
        for message in messages:
            self._take(*message)
        if not is_open:
            self._ready = False
            self._end_all("error", ENDED)

    def close(self) -> None:
        self._ready, self._unready = False, CLOSED
        self._connection.close()
        self._end_all("cancelled", CLOSED)
