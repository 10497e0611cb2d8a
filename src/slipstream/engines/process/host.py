"""The process of an engine: opens it, runs the requests that come in, and sends their output once per cycle.

It ends when the process that started it does: the connection between them is closed then. Signals for a whole group of
processes (Ctrl-C, a stop by systemd) are left to that process, which lets requests finish first.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from slipstream.engines.base import Engine
from slipstream.engines.job import Job
from slipstream.engines.process.channel import Channel
from slipstream.engines.process.output import OutputWriter
from slipstream.engines.process.requests import SentRequest

SUBMIT_THREADS = 4  # for requests that may take a while to start: another drafter, a grammar


class EngineHost:
    """Runs an engine for the process at the other end of a channel."""

    def __init__(self, channel: Channel, engine: Engine) -> None:
        self._channel, self._engine = channel, engine
        self._output = OutputWriter(channel, lambda: engine.stats)
        self._jobs: dict[int, Job] = {}
        self._cancelled: set[int] = set()  # before they were submitted
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(SUBMIT_THREADS, thread_name_prefix="slipstream-submit")

    def run(self) -> None:
        """Work until the engine is to be closed."""
        while (message := self._channel.receive()) is not None:
            name, *values = message
            if name == "submit":
                self._start(SentRequest(*values))
            elif name == "cancel":
                self._cancel(*values)
            elif name == "call":
                threading.Thread(target=self._call, args=values, daemon=True).start()
            else:
                break
        self._engine.close()
        self._output.close()

    def _start(self, request: SentRequest) -> None:
        if request.quick:
            self._submit(request)
        else:
            self._threads.submit(self._submit, request)

    def _submit(self, request: SentRequest) -> None:
        try:
            handles = self._engine.submit(request.prompt, request.sampling, request.options)
        except BaseException as error:
            self._channel.send("refused", request.number, as_sent(error))
            return
        numbers = range(request.number, request.number + len(handles))
        with self._lock:
            for number, job in zip(numbers, handles, strict=True):
                assert isinstance(job, Job)
                self._jobs[number] = job
                if number in self._cancelled:
                    self._cancelled.discard(number)
                    job.cancel()
        self._output.accept(request.number)
        for number, job in zip(numbers, handles, strict=True):
            assert isinstance(job, Job)
            self._output.watch(number, job, self._forget)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._jobs.pop(number, None)

    def _cancel(self, number: int) -> None:
        with self._lock:
            job = self._jobs.get(number)
            if job is None:
                self._cancelled.add(number)
        if job is not None:
            job.cancel()

    def _call(self, number: int, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
        try:
            self._channel.send("answer", number, function(self._engine, *values), None)
        except Exception as error:
            self._channel.send("answer", number, None, as_sent(error))


def as_sent(error: BaseException) -> Exception:
    """An error that the other process can read: the same, or one with the same sentence."""
    try:
        copy = pickle.loads(pickle.dumps(error))
        if isinstance(copy, Exception) and str(copy) == str(error):
            return copy
    except Exception:
        pass  # many errors of libraries cannot be copied
    for kind in (ValueError, OverflowError, OSError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


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
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=exit_with, args=(channel,), daemon=True).start()
    opening = channel.receive()
    if opening is None:
        return
    try:
        engine: Engine = pickle.loads(opening[0])()
        channel.send("ready", about(engine))
    except BaseException as error:
        channel.send("failed", as_sent(error))
        return
    with suppress(OSError):
        EngineHost(channel, engine).run()
    os._exit(0)  # nothing is left to do, and libraries that are unloaded complain


if __name__ == "__main__":
    main()
