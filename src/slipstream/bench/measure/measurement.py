"""One measurement: a workload once through one setup, every chunk stamped as it arrives.

Prompts go in groups of the batch size, each group at once, the next when all of it is done; a workload with fewer
prompts than the batch is gone through again. Decoding is timed from the moment at which every row of the group has its
first tokens, and only what comes after counts, so that reading prompts is told apart. Answers end where the model
ends them: text forced beyond that repeats itself, which would flatter drafting from the text.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any

from slipstream.bench.measure.energy import energy_used
from slipstream.bench.measure.memory import PeakMemory
from slipstream.bench.workloads import Item
from slipstream.core.sampling import Sampling
from slipstream.engines.base import (
    Completion,
    Engine,
    GenerationOptions,
    Prompt,
    RequestHandle,
    Speculation,
    SpeculationStats,
)


@dataclass
class Measurement:
    """What one repeat of a cell brought. Times in seconds."""

    tokens: int = 0
    seconds: float = 0.0
    decoded: int = 0  # tokens that came after every row of their group had its first
    decoding: float = 0.0  # the time they took
    first: list[float] = field(default_factory=list)  # from submitting to the first tokens, by request
    passes: int = 0  # of the target, at most: rows of a group go in step
    context: int = 0  # tokens that cached entries were read for, summed over rows and passes
    tally: SpeculationStats = field(default_factory=SpeculationStats)
    memory: int | None = None  # bytes at the highest, everything in the process counted
    answers: list[str] = field(default_factory=list)  # of the workload's own prompts, last turn
    prints: list[str] = field(default_factory=list)  # of the tokens of each answer, to see whether two are the same
    joules: float | None = None  # of the GPU, prompts included
    idle: float | None = None  # those among them that it would have taken for doing nothing

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: dict[str, Any]) -> Measurement:
        return Measurement(**{**data, "tally": SpeculationStats(**data["tally"])})

    @property
    def speed(self) -> float:
        """Tokens per second once the first are there; of whole calls where nothing came after the first."""
        return self.decoded / self.decoding if self.decoded and self.decoding else self.whole_speed

    @property
    def whole_speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Load:
    """How a workload is put to an engine."""

    batch: int
    temperature: float
    max_tokens: int
    speculation: Speculation = field(default_factory=Speculation)
    seed: int = 0  # of the first prompt; the others count on

    def sampling(self, number: int) -> Sampling:
        """A seed makes some engines decode a request by itself, so that requests of a batch go without."""
        seeded = self.temperature > 0 and self.batch == 1
        return Sampling(self.temperature, seed=self.seed + number if seeded else None)


def measure(engine: Engine, items: Sequence[Item], load: Load) -> Measurement:
    """Put a workload through an engine once."""
    measurement = Measurement()
    with PeakMemory() as mark, energy_used() as spent:
        for group in groups(len(items), load.batch):
            for number, done in zip(group, _converse(engine, items, group, load, measurement), strict=True):
                if number < len(items):
                    measurement.answers.append(done.text)
                    measurement.prints.append(hashlib.sha256(repr(done.token_ids).encode()).hexdigest()[:16])
    measurement.memory, measurement.joules, measurement.idle = mark.peak, spent.joules, spent.idle
    return measurement


def groups(count: int, batch: int) -> Iterator[list[int]]:
    """Numbers of prompts in full groups; those from `count` on stand for the first ones once more."""
    total = -(-count // batch) * batch
    return (list(range(start, start + batch)) for start in range(0, total, batch))


def _converse(
    engine: Engine, items: Sequence[Item], group: Sequence[int], load: Load, measurement: Measurement
) -> list[Completion]:
    """All turns of a group's conversations; the last answers."""
    conversations = [WorkloadConversation(items[number % len(items)]) for number in group]
    last: dict[int, Completion] = {}
    for turn in range(max(len(conversation.item.turns) for conversation in conversations)):
        open_ = [i for i, conversation in enumerate(conversations) if turn < len(conversation.item.turns)]
        prompts = [conversations[i].next_prompt(turn) for i in open_]
        done = _together(
            engine, [conversations[i].item for i in open_], prompts, [group[i] for i in open_], load, measurement
        )
        for i, completion in zip(open_, done, strict=True):
            conversations[i].add_answer(completion.text)
            last[i] = completion
    return [last[i] for i in range(len(conversations))]


class WorkloadConversation:
    """A conversation so far."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.messages = [{"role": "system", "content": item.system}] if item.system else []

    def next_prompt(self, turn: int) -> Prompt:
        if self.item.raw or (turn == 0 and not self.messages and len(self.item.turns) == 1):
            return self.item.turns[turn]
        self.messages.append({"role": "user", "content": self.item.turns[turn]})
        return list(self.messages)

    def add_answer(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})


class StreamTimer(threading.Thread):
    """Reads one handle and stamps its chunks."""

    def __init__(self, handle: RequestHandle) -> None:
        super().__init__(daemon=True)
        self.handle = handle
        self.stamps: list[tuple[float, int]] = []  # when, how many tokens
        self.done: Completion | None = None
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            for chunk in self.handle:
                if chunk.token_ids:
                    self.stamps.append((time.perf_counter(), len(chunk.token_ids)))
            self.done = self.handle.result()
        except BaseException as error:  # told by the one who waits
            self.trouble = error


def _together(
    engine: Engine,
    items: Sequence[Item],
    prompts: Sequence[Prompt],
    numbers: Sequence[int],
    load: Load,
    measurement: Measurement,
) -> list[Completion]:
    """One turn of a group, all requests at once."""
    started, timers = time.perf_counter(), list[StreamTimer]()
    try:
        for item, prompt, number in zip(items, prompts, numbers, strict=True):
            options = GenerationOptions(load.max_tokens, stop=item.stop, raw=item.raw, speculation=load.speculation)
            (handle,) = engine.submit(prompt, load.sampling(number), options)
            timers.append(StreamTimer(handle))
            timers[-1].start()
        for timer in timers:
            timer.join()
    except BaseException:
        for timer in timers:
            timer.handle.cancel()
        raise
    ended = time.perf_counter()
    done = [_finished(timer) for timer in timers]
    book_times(measurement, [timer.stamps for timer in timers], started, ended)
    book_counts(measurement, done, engine)
    return done


def _finished(timer: StreamTimer) -> Completion:
    if timer.trouble is not None:
        raise timer.trouble
    assert timer.done is not None, "a timer ends with a completion or with trouble"
    if timer.done.error:
        raise ValueError(f"the engine failed on a prompt: {timer.done.error}")
    return timer.done


def book_times(measurement: Measurement, stamps: Sequence[list[tuple[float, int]]], start: float, end: float) -> None:
    """Add the times of one group to a measurement."""
    begun = [row[0][0] for row in stamps if row]
    all_begun = max(begun, default=end)
    later = [(when, count) for row in stamps for when, count in row[1:] if when > all_begun]
    measurement.seconds += end - start
    measurement.decoded += sum(count for _, count in later)
    measurement.decoding += max((when for when, _ in later), default=all_begun) - all_begun
    measurement.first += [when - start for when in begun]


def book_counts(measurement: Measurement, done: Sequence[Completion], engine: Engine) -> None:
    """Add the tokens and the passes of one group; an engine that takes requests one by one shares no pass."""
    drafted = any(completion.stats.drafted for completion in done)
    shares = engine.capabilities.batch_drafting if drafted else engine.capabilities.batch
    cycles = [completion.stats.cycles for completion in done]
    measurement.passes += max(cycles) if shares else sum(cycles)
    for completion in done:
        measurement.tokens += len(completion.token_ids)
        measurement.context += completion.stats.cycles * (completion.prompt_tokens + len(completion.token_ids) // 2)
        measurement.tally.merge(completion.stats)


def warm(engine: Engine, items: Sequence[Item], load: Load) -> None:
    """Pay for starting up once, apart from everything that is timed."""
    short = list(islice(cycle(items), load.batch))
    measure(engine, short, Load(load.batch, load.temperature, min(8, load.max_tokens), load.speculation, load.seed))
