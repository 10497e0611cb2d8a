"""Runs one generation: submits it, shows its chunks, measures its times, and handles Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.bench.measure.measurement import Measurement, add_times
from slipstream.engines.base import (
    Chunk,
    Completion,
    Engine,
    GenerationOptions,
    Prompt,
    RequestHandle,
    Speculation,
    SpeculationStats,
)

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling

Show = Callable[[Chunk], None]


@dataclass(frozen=True)
class GenerationTask:
    """A prompt with its sampling parameters and options."""

    prompt: Prompt
    sampling: Sampling
    options: GenerationOptions

    def plain(self) -> GenerationTask:
        """The same task without speculation."""
        return replace(self, options=replace(self.options, speculation=Speculation(off=True)))


@dataclass(frozen=True)
class Run:
    """The samples of one task and their times. The speed is that of decoding, without the time to the first token."""

    samples: list[Completion]
    times: Measurement
    interrupted: bool = False

    @property
    def stats(self) -> SpeculationStats:
        """The sum over all samples."""
        total = SpeculationStats()
        for sample in self.samples:
            total.merge(sample.stats)
        return total

    @property
    def drafted(self) -> int:
        return sum(self.stats.drafted)


def run_task(
    engine: Engine, task: GenerationTask, show: Show | None = None, on_sample: Callable[[int], None] | None = None
) -> Run:
    """Generate once. Ctrl-C ends the generation, and the result holds the tokens so far.

    `show` is called with the chunks of one sample after the other, `on_sample` with the number of each further one."""
    handles = engine.submit(task.prompt, task.sampling, task.options)
    started = time.perf_counter()
    listeners = [Listener(handle) for handle in handles]
    interrupted = False
    try:
        _listen(listeners, show, on_sample)
    except BaseException as error:  # Ctrl-C, or an error of `show` such as a full disk
        for handle in handles:
            handle.cancel()
        if not isinstance(error, KeyboardInterrupt):
            raise
        interrupted = True
    samples = [listener.result() for listener in listeners]
    times = Measurement(tokens=sum(len(sample.token_ids) for sample in samples))
    add_times(times, [listener.stamps for listener in listeners], started, time.perf_counter())
    return Run(samples, times, interrupted)


def _listen(listeners: Sequence[Listener], show: Show | None, on_sample: Callable[[int], None] | None) -> None:
    """Read all samples at the same time, and show one after the other."""
    first, *others = listeners
    for other in others:
        other.thread.start()
    first.listen(show)
    for number, other in enumerate(others, 1):
        other.thread.join()
        if show and on_sample:
            on_sample(number)
        if show:
            for chunk in other.chunks:
                show(chunk)


class Listener:
    """Reads the chunks of one request, in the thread that calls `listen` or in its own thread."""

    def __init__(self, handle: RequestHandle) -> None:
        self.handle = handle
        self.chunks: list[Chunk] = []
        self.stamps: list[tuple[float, int]] = []  # time in seconds, number of tokens
        self.thread = threading.Thread(target=self.listen, daemon=True)

    def listen(self, show: Show | None = None) -> None:
        for chunk in self.handle:
            if chunk.token_ids:
                self.stamps.append((time.perf_counter(), len(chunk.token_ids)))
            self.chunks.append(chunk)
            if show:
                show(chunk)

    def result(self) -> Completion:
        if self.thread.ident is not None:  # a handle must not have two readers at a time
            self.thread.join()
        sample = self.handle.result()
        if sample.error:
            raise ValueError(sample.error)
        return sample
