"""Messages between the process of an engine and the process that uses it.

A message is a pickled tuple: its name and its arguments. The output of a cycle is one message for all rows. It is
written by `marshal`, which takes half of pickle's time for numbers and strings.
"""

from __future__ import annotations

import marshal
import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

HEAD = struct.Struct("<cI")  # the encoding and the size of a message
PICKLED, MARSHALLED = b"p", b"m"
BUFFER = 1 << 20

# The output of a row: its number, its tokens, their origins, and the rest (a pickled item) where there is more.
RowOutput = tuple[int, Any, Any, bytes | None]


class Channel:
    """One end of a connection. Any thread may send, and one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        self._file = connection.makefile("rb", BUFFER)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """OSError where the other end is closed."""
        self._write(PICKLED, pickle.dumps(message, 5))

    def send_output(self, accepted: list[int], rows: list[RowOutput]) -> None:
        """The numbers of requests that were accepted, and the output of rows."""
        self._write(MARSHALLED, marshal.dumps(("output", accepted, rows)))

    def _write(self, kind: bytes, body: bytes) -> None:
        with self._lock:
            self._socket.sendall(HEAD.pack(kind, len(body)) + body)

    def receive(self) -> tuple[Any, ...] | None:
        """The next message; None where the other end is closed."""
        try:
            head = self._file.read(HEAD.size)
            if len(head) < HEAD.size:
                return None
            kind, size = HEAD.unpack(head)
            body = self._file.read(size)
        except (OSError, ValueError):  # reset, or closed by another thread
            return None
        if len(body) < size:
            return None
        message: tuple[Any, ...] = marshal.loads(body) if kind == MARSHALLED else pickle.loads(body)
        return message

    def close(self) -> None:
        """Close this end. A thread that waits in `receive` gets None."""
        with suppress(OSError):  # the other end is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()
