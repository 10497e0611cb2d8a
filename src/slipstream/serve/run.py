"""Run the application: bind the port, serve until Ctrl-C, finish streams, and say in one sentence what went wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from slipstream.serve.app import create_app
from slipstream.serve.config import ServerConfig
from slipstream.serve.connections import timed_protocol
from slipstream.serve.logs import start_logging


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; ValueError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ValueError(f"{host}:{port} cannot be listened on: {error}; choose another --port") from error
    return listener


def serve_forever(
    config: ServerConfig, host: str, port: int, ready: Callable[[str], None], log_format: str = "plain"
) -> None:
    """Serve until the process is told to stop. `ready` gets the address when the first model is loaded."""
    listener = bind(host, port)
    start_logging(log_format)
    host, port = listener.getsockname()[:2]
    app = create_app(config)
    settings = uvicorn.Config(
        app,
        http=timed_protocol(config.limits.read_seconds),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(config.limits.shutdown_seconds),
        timeout_keep_alive=75,
        server_header=False,
    )
    server = uvicorn.Server(settings)
    app.state.stop = lambda: setattr(server, "should_exit", True)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    app.state.ready = lambda: ready(address)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    if (error := app.state.failed) is not None:
        raise error if isinstance(error, ValueError | OSError) else ValueError(str(error))
