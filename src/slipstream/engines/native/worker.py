"""The worker thread: runs the steps of a batch for requests from any thread.

A failure of a step ends the running requests, and the thread continues. If the thread itself ends, as after SystemExit
in a callback, all requests end with an error and new ones are refused.

Engines that share one loaded model take turns: its rows and its cache belong to one thread at a time.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence

import torch

from slipstream.core.interfaces import Model
from slipstream.engines.base import check_process
from slipstream.engines.job import Job
from slipstream.engines.native.batch import Batch
from slipstream.kernels import collector


class ModelTurns:
    """A lock that threads get in turn, so that a busy engine does not keep it."""

    def __init__(self) -> None:
        self._next, self._turn = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # held while waiting, so the last one cannot come back first
            self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()


_turns: weakref.WeakKeyDictionary[Model, ModelTurns] = weakref.WeakKeyDictionary()


def turns_of(model: Model) -> ModelTurns:
    """The turns of all engines with this model."""
    return _turns.setdefault(model, ModelTurns())


class Worker:
    """The thread of an engine. It is started by the first request."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._turns = batch, turns_of(batch.model)
        self._inbox: list[Job] = []
        self._ready = threading.Condition()
        self._closed = False
        self._failure: str | None = None  # why the thread ended unexpectedly
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ValueError if the thread cannot decode requests."""
        check_process(self._pid)  # first, because in a fork a lock may be held by a thread that does not exist
        if self._failure:
            raise ValueError(f"the engine has stopped ({self._failure}); make a new one")
        if self._closed:
            raise ValueError("the engine is closed; make a new one")

    def send(self, jobs: Sequence[Job]) -> None:
        self.check()
        with self._ready:
            self.check()
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="slipstream", daemon=True)
                thread.start()
                self._thread = thread
                _at_work.add(self)
            self._inbox += jobs
            self._ready.notify()

    def _work(self) -> None:
        collector.relax()
        busy = False
        try:
            while self._receive(busy):
                try:
                    with self._turns, torch.inference_mode():
                        busy = self._batch.step()
                except Exception as error:
                    self._batch.fail(error)
                    busy = True
        except BaseException as error:  # also SystemExit: waiting and later requests get this error
            self._stop(f"{type(error).__name__}: {error}".removesuffix(": "))

    def _receive(self, busy: bool) -> bool:
        """Move new jobs to the batch, and wait for one if the batch is idle. False when the engine closes.

        The lock is held only here and not during a step, so `send` does not wait for a step."""
        if busy and not self._inbox and not self._closed:  # most often: no lock, so no thread takes over
            return True
        with self._ready:
            self._ready.wait_for(lambda: busy or self._inbox or self._closed)
            for job in self._inbox:
                self._batch.add(job)
            self._inbox = []
            return not self._closed

    def _stop(self, failure: str) -> None:
        with self._ready:
            self._failure = failure
            jobs, self._inbox = self._inbox, []
        for job in [*self._batch.scheduler.running, *self._batch.scheduler.waiting, *jobs]:
            job.end("error", f"the engine has stopped ({failure})")

    def rest(self) -> None:
        """End the thread after its current step. Does nothing in a forked process, which has no such thread."""
        if self._forked:
            return
        with self._ready:
            self._closed = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the thread and all requests, and free their rows."""
        if self._forked:
            return
        if threading.current_thread() is self._thread:
            raise ValueError("the engine cannot be closed from its own thread, as by a watch callback")
        self.rest()
        self._receive(busy=True)
        for job in [*self._batch.scheduler.running, *self._batch.scheduler.waiting]:
            job.cancel()
        with self._turns:
            self._batch.schedule()
        if self._thread is not None:
            collector.restore()
            self._thread = None


_at_work: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _all_rest() -> None:
    """End all threads before the interpreter exits: a thread that computes during exit can crash the process, and rows
    are closed after their last chunk was published."""
    for worker in list(_at_work):
        worker.rest()
