"""Run the application: bind the port, serve until Ctrl-C, finish streams, and say in one sentence what went wrong."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from slipstream.serve.app import create_app
from slipstream.serve.config import ServerConfig, ServerLimits
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


def http_settings(app: FastAPI, limits: ServerLimits) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        app,
        http=timed_protocol(limits.read_seconds),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(limits.shutdown_seconds),
        timeout_keep_alive=75,
        server_header=False,
    )


def serve_forever(
    config: ServerConfig, host: str, port: int, ready: Callable[[str], None], log_format: str = "plain"
) -> None:
    """Serve until the process is told to stop. `ready` gets the address when the first model is loaded."""
    listener = bind(host, port)
    start_logging(log_format)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    run = _run_workers if config.api_servers > 1 else _run_here
    with listener:
        run(config, listener, lambda: ready(address), log_format)


def _run_here(config: ServerConfig, listener: socket.socket, ready: Callable[[], None], log_format: str) -> None:
    """Serve HTTP in this process."""
    app = create_app(config)
    server = uvicorn.Server(http_settings(app, config.limits))
    app.state.stop = lambda: setattr(server, "should_exit", True)
    app.state.ready = ready
    server.run(sockets=[listener])
    if (error := app.state.failed) is not None:
        raise error if isinstance(error, ValueError | OSError) else ValueError(str(error))


def _run_workers(config: ServerConfig, listener: socket.socket, ready: Callable[[], None], log_format: str) -> None:
    """Serve HTTP in several processes."""
    from slipstream.serve.workers.group import WorkerGroup

    async def run() -> None:
        group, loop = WorkerGroup(config, log_format), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, group.stop)
        await group.run(listener, ready)

    asyncio.run(run())
