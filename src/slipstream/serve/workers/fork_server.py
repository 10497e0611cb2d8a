"""A process that has imported what workers need, and forks a worker whenever it is asked to.

So the libraries are imported once for all workers, which start at once and share their memory. The process has one
thread and never opens a model. It ends when the process that started it does.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from slipstream.engines.process.child import start_module
from slipstream.serve.workers.worker import run_worker

NUMBER = struct.Struct("!q")
IMPORTED_LATE = ("jinja2.ext", "jinja2.sandbox", "pydantic.v1")  # by libraries, at the first request


class ForkServer:
    """The process, as the one that started it sees it."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = start_module(__name__, [theirs])

    def fork(self, status: socket.socket, link: socket.socket, connections: socket.socket) -> None:
        """Start a worker, which gets `link` and `connections`. Its process id and then its exit code come by `status`;
        only the end of the stream comes where this process has ended."""
        if self._process.poll() is not None:
            self._socket.close()
            self._start()
        socket.send_fds(self._socket, [b"f"], [end.fileno() for end in (status, link, connections)])

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


class ForkLoop:
    """The loop of that process."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests, self._statuses = requests, dict[int, socket.socket]()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stop of the whole group is left to the other process
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno())

    def run(self) -> None:
        while True:
            readable, _, _ = select.select([self._requests, self._woken], [], [])
            if self._woken in readable:
                self._woken.recv(4096)
                self._reap()
            if self._requests in readable:
                data, descriptors, _, _ = socket.recv_fds(self._requests, 1, 3)
                if not data:
                    return
                self._fork([socket.socket(fileno=number) for number in descriptors])

    def _fork(self, sockets: Sequence[socket.socket]) -> None:
        status, link, connections = sockets
        pid = os.fork()
        if not pid:
            status.close()
            self._become_worker(link, connections)
        link.close()
        connections.close()
        self._statuses[pid] = status
        self._send(pid, pid)

    def _become_worker(self, link: socket.socket, connections: socket.socket) -> None:
        """In the forked process; it ends here."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for end in (self._requests, self._woken, self._wake, *self._statuses.values()):
                end.close()
            os.setsid()
            run_worker(link, connections)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._statuses:
            pid, result = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._send(pid, os.waitstatus_to_exitcode(result))
            self._statuses.pop(pid).close()

    def _send(self, pid: int, number: int) -> None:
        with suppress(OSError):  # the process that started this one has ended
            self._statuses[pid].send(NUMBER.pack(number))


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED_LATE:
        with suppress(ImportError):  # another version of a library
            importlib.import_module(name)
    gc.freeze()  # so that collections in the workers leave shared memory alone
    ForkLoop(requests).run()


if __name__ == "__main__":
    main()
