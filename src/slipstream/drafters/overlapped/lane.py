"""Where an overlapped drafter runs: a thread of its own, with its own share of the cores or its own CUDA stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from slipstream.kernels.machine import limit_threads

T = TypeVar("T")
ONE_THREAD = (
    "drafter and target share one device and one thread, so no draft can be made while the target scores; torch needs "
    "two threads, or the drafter another device"
)
SHARE = 4  # a drafter on the target's processor takes one of so many threads


class Lane:
    """Runs calls one after another in one thread. `device`: of the drafter. `shared`: the target is on the same CPU.

    Each call is complete when its future is: work on a CUDA stream is waited for."""

    def __init__(self, device: torch.device, shared: bool = False, executor: Executor | None = None) -> None:
        self._device = device
        threads = torch.get_num_threads()
        self._all, self._own = threads, max(1, threads // SHARE)
        self._split = shared and device.type == "cpu" and executor is None
        if self._split and threads < 2:
            raise ValueError(ONE_THREAD)
        self._executor = executor or ThreadPoolExecutor(1, "slipstream-draft", self._start)
        self._stream: torch.cuda.Stream | None = None
        self._reduced = False

    def _start(self) -> None:
        """Prepare the thread."""
        if self._split:
            limit_threads(self._own, self._all)
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def leave_cores(self, active: bool) -> None:
        """Reduce the threads of the calling thread, which runs the target, by the drafter's; or restore them."""
        if self._split and active != self._reduced:
            limit_threads(self._all - self._own if active else self._all, self._all)
            self._reduced = active

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        return self._executor.submit(self._run, call, *arguments)

    def call(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call in the lane and wait for it."""
        return self.submit(call, *arguments).result()

    def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._stream) if self._stream else nullcontext()
        with torch.inference_mode(), stream:
            result = call(*arguments)
        if self._stream:
            self._stream.synchronize()
        return result
