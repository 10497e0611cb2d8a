"""A worker: an HTTP process that serves the connections which the process that started it has accepted.

It ends when that process does. Signals for a whole group of processes (Ctrl-C, a stop by systemd) are left to that
process, which lets requests finish first. `fork_server` starts it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

from slipstream.engines.process.channel import Channel
from slipstream.serve.app import create_app
from slipstream.serve.config import ServerConfig
from slipstream.serve.logs import start_logging
from slipstream.serve.run import http_settings
from slipstream.serve.workers.connected_shared import ConnectedShared


class HttpWorker:
    def __init__(self, channel: Channel, connections: socket.socket, config: ServerConfig) -> None:
        self._connections = connections
        app = create_app(config, connect=lambda metrics: ConnectedShared(channel, metrics, self._stop))
        app.state.ready, app.state.stop = self._listen, self._stop
        self._server = uvicorn.Server(http_settings(app, config.limits))
        self._opening: set[asyncio.Task[Any]] = set()

    def run(self) -> None:
        self._server.run(sockets=[])

    def _stop(self) -> None:
        """Finish what is under way, and end."""
        self._server.should_exit = True

    def _listen(self) -> None:
        self._connections.setblocking(False)
        asyncio.get_running_loop().add_reader(self._connections.fileno(), self._take_connections)

    def _take_connections(self) -> None:
        loop = asyncio.get_running_loop()
        while (connection := self._next_connection()) is not None:
            task = loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _next_connection(self) -> socket.socket | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connections, 1, 1)
        except BlockingIOError:
            return None
        if not data:  # the process that accepts connections has ended
            asyncio.get_running_loop().remove_reader(self._connections.fileno())
            return None
        return socket.socket(fileno=descriptors[0])

    def _protocol(self) -> asyncio.Protocol:
        server = self._server
        kind: Any = server.config.http_protocol_class
        protocol: asyncio.Protocol = kind(
            config=server.config, server_state=server.server_state, app_state=server.lifespan.state
        )
        return protocol


def run_worker(link: socket.socket, connections: socket.socket) -> None:
    """Serve until the process that accepts connections says stop, or ends. `link` leads to it; connections come by
    `connections`."""
    channel = Channel(link)
    start = channel.receive()
    if start is None:
        return
    config, log_form = start
    start_logging(log_form)
    HttpWorker(channel, connections, config).run()
