"""One generation as `generate` and its comparison run it: started, shown, timed, and ended by Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.bench.measure.measurement import Measurement, book_times
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
    """What is generated."""

    prompt: Prompt
    sampling: Sampling
    options: GenerationOptions

    def plain(self) -> GenerationTask:
        """The same without speculation."""
        return replace(self, options=replace(self.options, speculation=Speculation(off=True)))


@dataclass(frozen=True)
class Run:
    """The samples of one task, and how long they took. Speed is that of decoding, after the first tokens."""

    samples: list[Completion]
    times: Measurement
    interrupted: bool = False

    @property
    def stats(self) -> SpeculationStats:
        """Counts of all samples together."""
        total = SpeculationStats()
        for sample in self.samples:
            total.merge(sample.stats)
        return total

    @property
    def drafted(self) -> int:
        return sum(self.stats.drafted)


def run_task(
    engine: Engine, task: GenerationTask, show: Show | None = None, between: Callable[[int], None] | None = None
) -> Run:
    """Generate once. `show` is given the chunks of one sample after another, `between` the number of each that begins.
    Ctrl-C ends it with what there is."""
    handles = engine.submit(task.prompt, task.sampling, task.options)
    started = time.perf_counter()
    listeners = [Listener(handle) for handle in handles]
    interrupted = False
    try:
        _listen(listeners, show, between)
    except BaseException as error:  # a full disk ends it too
        for handle in handles:
            handle.cancel()
        if not isinstance(error, KeyboardInterrupt):
            raise
        interrupted = True
    samples = [listener.result() for listener in listeners]
    times = Measurement(tokens=sum(len(sample.token_ids) for sample in samples))
    book_times(times, [listener.stamps for listener in listeners], started, time.perf_counter())
    return Run(samples, times, interrupted)


def _listen(listeners: Sequence[Listener], show: Show | None, between: Callable[[int], None] | None) -> None:
    """Follow all samples at once, and show one after another."""
    first, *others = listeners
    for other in others:
        other.thread.start()
    first.listen(show)
    for number, other in enumerate(others, 1):
        other.thread.join()
        if show and between:
            between(number)
        if show:
            for chunk in other.chunks:
                show(chunk)


class Listener:
    """Reads the chunks of one handle as they come, in the thread that calls `listen` or in one of its own."""

    def __init__(self, handle: RequestHandle) -> None:
        self.handle = handle
        self.chunks: list[Chunk] = []
        self.stamps: list[tuple[float, int]] = []  # when, how many tokens
        self.thread = threading.Thread(target=self.listen, daemon=True)

    def listen(self, show: Show | None = None) -> None:
        for chunk in self.handle:
            if chunk.token_ids:
                self.stamps.append((time.perf_counter(), len(chunk.token_ids)))
            self.chunks.append(chunk)
            if show:
                show(chunk)

    def result(self) -> Completion:
        if self.thread.ident is not None:  # two readers of one handle would share its chunks
            self.thread.join()
        sample = self.handle.result()
        if sample.error:
            raise ValueError(sample.error)
        return sample
