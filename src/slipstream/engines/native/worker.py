"""The worker thread: runs the steps of a batch for requests from any thread.

A failure of a step ends the requests under way, and the thread goes on. Should the thread itself end, as after
SystemExit in a callback, all requests end with an error and new ones are refused: nobody waits for a thread that is
gone.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from collections.abc import Sequence

import torch

from slipstream.engines.base import check_process
from slipstream.engines.job import Job
from slipstream.engines.native.batch import Batch


class Worker:
    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._inbox: list[Job] = []
        self._ready = threading.Condition()
        self._closed = False
        self._failure: str | None = None  # why the thread ended before it was asked to
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._pid

    def check(self) -> None:
        """Refuse requests that nobody would decode."""
        check_process(self._pid)  # first: after a fork a lock may be held by a thread that is not here
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
        gc.freeze()  # what was loaded stays: looking through it for garbage takes longer than many cycles
        busy = False
        try:
            while self._receive(busy):
                try:
                    with torch.inference_mode():
                        busy = self._batch.step()
                except Exception as error:
                    self._batch.fail(error)
                    busy = True
        except BaseException as error:  # also SystemExit: it is told to all who wait, and to all who ask later
            self._stop(f"{type(error).__name__}: {error}".removesuffix(": "))

    def _receive(self, busy: bool) -> bool:
        """Move new jobs to the batch, wait for some where it has nothing to do; False when the engine closes. Nobody
        who submits waits for a step: the lock is held only here."""
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
        """End the thread, once the step that is under way is done. A forked process has no such thread."""
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
        self._batch.schedule()
        gc.unfreeze()


_at_work: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _all_rest() -> None:
    """A thread that still computes when the interpreter goes away takes the process down with it, and a row is put away
    after its answer is out."""
    for worker in list(_at_work):
        worker.rest()
