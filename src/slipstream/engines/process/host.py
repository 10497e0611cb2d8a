"""The process of an engine: opens it, runs the requests that come in, and sends their output once per cycle.

It ends when the process that started it does: the connection between them is closed then. Other processes of the same
server connect to its socket. Signals for a whole group of processes (Ctrl-C, a stop by systemd) are left to the process
that started it, which lets requests finish first.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

from slipstream.engines.base import Engine
from slipstream.engines.process.channel import Channel
from slipstream.engines.process.output import OutputWriter
from slipstream.engines.process.session import EngineSession, as_sent


class EngineHost:
    """Runs an engine for the process that started this one, and for those that connect to `listener`."""

    def __init__(self, channel: Channel, engine: Engine, listener: socket.socket) -> None:
        self._channel, self._engine, self._listener = channel, engine, listener
        self._about = about(engine)
        self._output = OutputWriter(lambda: channel.send("stats", engine.stats))

    def announce(self) -> None:
        """Tell the process that started this one what the engine is."""
        self._channel.send("ready", self._about)

    def run(self) -> None:
        """Work until the engine is to be closed."""
        threading.Thread(target=self._accept, name="slipstream-accept", daemon=True).start()
        EngineSession(self._channel, self._engine, self._output).run()
        self._engine.close()
        self._output.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(Channel(connection),), daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        """Run the requests of another process until it closes its end."""
        with suppress(OSError):
            channel.send("ready", self._about)
            EngineSession(channel, self._engine, self._output).run()
        channel.close()


def about(engine: Engine) -> dict[str, Any]:
    """What the other process knows of an engine without asking it."""
    offered = engine.capabilities
    return {
        "capabilities": replace(offered, drafters=tuple(offered.drafters), rules=tuple(offered.rules)),
        "model_info": engine.model_info,
        "text": engine.text,
        "version": engine.version,
        "stats": engine.stats,
    }


def exit_with(channel: Channel) -> None:
    """End this process, whatever it does, when the other end of the channel is closed."""
    poll = select.poll()
    poll.register(channel.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    os._exit(0)


def main() -> None:
    channel, listener = (Channel(socket.socket(fileno=int(sys.argv[1]))), socket.socket(fileno=int(sys.argv[2])))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=exit_with, args=(channel,), daemon=True).start()
    opening = channel.receive()
    if opening is None:
        return
    try:
        host = EngineHost(channel, pickle.loads(opening[0])(), listener)
        host.announce()
    except BaseException as error:
        channel.send("failed", as_sent(error))
        return
    with suppress(OSError):
        host.run()
    os._exit(0)  # nothing is left to do, and libraries that are unloaded complain


if __name__ == "__main__":
    main()
