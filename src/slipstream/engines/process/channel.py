"""Messages between the process of an engine and the processes that use it.

A message is a pickled tuple: its name and its arguments. The output of a cycle is one message for all rows of a
connection. It is written by `marshal`, which takes half of pickle's time for numbers and strings.
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
Message = tuple[Any, ...]


class Channel:
    """One end of a connection. Any thread may send, and one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        self._received = bytearray()
        self._unsent = bytearray()  # what the other end has no room for; `_flush` sends it
        self._flushing = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """OSError where the other end is closed. Never waits for the other end to read."""
        self._write(PICKLED, pickle.dumps(message, 5))

    def send_output(self, accepted: list[int], rows: list[RowOutput]) -> None:
        """The numbers of requests that were accepted, and the output of rows."""
        self._write(MARSHALLED, marshal.dumps(("output", accepted, rows)))

    def _write(self, kind: bytes, body: bytes) -> None:
        data = HEAD.pack(kind, len(body)) + body
        with self._lock:
            sent = 0 if self._flushing else self._send_now(data)
            if sent == len(data):
                return
            self._unsent += memoryview(data)[sent:]
            if not self._flushing:
                self._flushing = True
                threading.Thread(target=self._flush, name="slipstream-flush", daemon=True).start()

    def _send_now(self, data: bytes) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _flush(self) -> None:
        """Send what is left as the other end reads."""
        with suppress(OSError):  # closed; whoever receives finds out
            while True:
                with self._lock:
                    data = bytes(self._unsent)
                    self._unsent.clear()
                    self._flushing = bool(data)
                if not data:
                    return
                self._socket.sendall(data)

    def receive(self) -> Message | None:
        """The next message; None where the other end is closed."""
        while (message := self._next()) is None:
            if not self._read(0):
                return None
        return message

    def receive_available(self) -> tuple[list[Message], bool]:
        """The messages that are there, without waiting, and whether the other end is open."""
        is_open = self._read(socket.MSG_DONTWAIT)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages, is_open

    def _read(self, flags: int) -> bool:
        """Read what is there. False where the other end is closed."""
        try:
            data = self._socket.recv(BUFFER, flags)
        except BlockingIOError:
            return True
        except OSError:  # reset, or closed by another thread
            return False
        self._received += data
        return bool(data)

    def _next(self) -> Message | None:
        """Take a whole message from what was read."""
        received = self._received
        if len(received) < HEAD.size:
            return None
        kind, size = HEAD.unpack_from(received)
        end = HEAD.size + size
        if len(received) < end:
            return None
        body = bytes(memoryview(received)[HEAD.size : end])
        del received[:end]
        message: Message = marshal.loads(body) if kind == MARSHALLED else pickle.loads(body)
        return message

    def close(self) -> None:
        """Close this end. A thread that waits in `receive` gets None."""
        with suppress(OSError):  # the other end is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
