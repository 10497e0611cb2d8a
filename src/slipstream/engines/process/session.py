"""The requests of one connection to the process of an engine."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from slipstream.engines.base import Engine, RequestHandle
from slipstream.engines.process.channel import Channel
from slipstream.engines.process.output import OutputQueue, OutputWriter
from slipstream.engines.process.requests import SentRequest

SUBMIT_THREADS = 4  # for requests that may take a while to start: another drafter, a grammar


class EngineSession:
    """Runs the requests that come in over a channel. Several sessions share one engine."""

    def __init__(self, channel: Channel, engine: Engine, output: OutputWriter) -> None:
        self._channel, self._engine, self._output = channel, engine, output
        self._queue = OutputQueue(channel, self._forget)
        self._jobs: dict[int, RequestHandle] = {}
        self._starting: set[int] = set()  # samples that are not submitted yet
        self._cancelled: set[int] = set()  # those of them that are to be cancelled at once
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(SUBMIT_THREADS, thread_name_prefix="slipstream-submit")

    def run(self) -> None:
        """Work until the channel is closed, or the engine is to be closed. Requests still under way are cancelled."""
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
        with self._lock:
            under_way = list(self._jobs.values())
            self._cancelled |= self._starting
        for job in under_way:
            job.cancel()
        self._threads.shutdown(wait=False)

    def _start(self, request: SentRequest) -> None:
        with self._lock:
            self._starting.update(request.numbers)
        if request.quick:
            self._submit(request)
        else:
            self._threads.submit(self._submit, request)

    def _submit(self, request: SentRequest) -> None:
        try:
            handles = self._engine.submit(request.prompt, request.sampling, request.options)
        except BaseException as error:
            with self._lock:
                self._started(request)
            with suppress(OSError):  # nobody is left to be told
                self._channel.send("refused", request.number, as_sent(error))
            return
        with self._lock:
            self._jobs.update(zip(request.numbers, handles, strict=True))
            for number in self._started(request):
                self._jobs[number].cancel()
        self._output.accept(self._queue, request.number)
        for number, handle in zip(request.numbers, handles, strict=True):
            self._output.watch(self._queue, number, handle)

    def _started(self, request: SentRequest) -> set[int]:
        """The samples of a request are submitted. Those that were cancelled meanwhile."""
        numbers = set(request.numbers)
        cancelled = self._cancelled & numbers
        self._starting -= numbers
        self._cancelled -= numbers
        return cancelled

    def _forget(self, number: int) -> None:
        with self._lock:
            self._jobs.pop(number, None)

    def _cancel(self, number: int) -> None:
        """One that has ended meanwhile is neither under way nor starting."""
        with self._lock:
            if number in self._starting:
                self._cancelled.add(number)
            elif (job := self._jobs.get(number)) is not None:
                job.cancel()

    def _call(self, number: int, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
        with suppress(OSError):
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
