"""One measurement: a workload run once through one setup, with a time stamp for every chunk.

Prompts are submitted in groups of the batch size. A group starts when the group before it is finished. A workload with
fewer prompts than the batch is repeated. Decoding time starts when every request of the group has its first tokens, and
only later tokens count, so prefill is excluded. Answers end at the model's end tokens: text forced beyond them repeats
itself, which would favour drafting from the text.
"""

from __future__ import annotations

import hashlib
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
from slipstream.engines.native.engine import NativeEngine


@dataclass
class Measurement:
    """The result of one repeat of a cell. Times are in seconds."""

    tokens: int = 0
    seconds: float = 0.0
    decoded: int = 0  # tokens after every request of their group had its first tokens
    decoding: float = 0.0  # their time
    first: list[float] = field(default_factory=list)  # time to the first tokens, by request
    passes: int = 0  # of the target; an upper bound, since the requests of a group share passes
    context: int = 0  # cached tokens that were read, summed over rows and passes
    tally: SpeculationStats = field(default_factory=SpeculationStats)
    memory: int | None = None  # peak memory in bytes, of the GPU or of the whole process
    answers: list[str] = field(default_factory=list)  # last turn of each prompt of the workload
    prints: list[str] = field(default_factory=list)  # hash of the tokens of each answer, to compare answers
    joules: float | None = None  # prompts included
    idle: float | None = None  # joules of idling over the same time
    energy_source: str | None = None  # the counter, or the stated power of an estimate
    energy_missing: str | None = None  # why there are no joules

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: dict[str, Any]) -> Measurement:
        return Measurement(**{**data, "tally": SpeculationStats(**data["tally"])})

    @property
    def speed(self) -> float:
        """Tokens per second after the first tokens; of whole calls if there were no later tokens."""
        return self.decoded / self.decoding if self.decoded and self.decoding else self.whole_speed

    @property
    def whole_speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Load:
    """How the prompts of a workload are submitted to an engine."""

    batch: int
    temperature: float
    max_tokens: int
    speculation: Speculation = field(default_factory=Speculation)

    @property
    def sampling(self) -> Sampling:
        """The sampling of every prompt. It has no seed: some engines decode seeded requests alone, and the policy of
        ours does not choose the depth of a seeded request under a rule such as `block`."""
        return Sampling(self.temperature)


def measure(engine: Engine, items: Sequence[Item], load: Load) -> Measurement:
    """Run a workload once."""
    measurement = Measurement()
    with PeakMemory() as mark, energy_used(device_of(engine)) as spent:
        add_run(engine, items, load, measurement)
    measurement.memory, measurement.joules, measurement.idle = mark.peak, spent.joules, spent.idle
    measurement.energy_source, measurement.energy_missing = spent.source, spent.missing
    return measurement


def add_run(engine: Engine, items: Sequence[Item], load: Load, measurement: Measurement) -> None:
    """Run a workload once, and add its times and counts to a measurement."""
    for group in groups(len(items), load.batch):
        for number, done in zip(group, _converse(engine, items, group, load, measurement), strict=True):
            if number < len(items):
                measurement.answers.append(done.text)
                measurement.prints.append(hashlib.sha256(repr(done.token_ids).encode()).hexdigest()[:16])


def device_of(engine: Engine) -> str:
    """The device whose energy counts: that of a native engine's model; auto for other engines."""
    return engine.target.model.device.type if isinstance(engine, NativeEngine) else "auto"


def groups(count: int, batch: int) -> Iterator[list[int]]:
    """The prompt numbers of full groups. Numbers from `count` on mean the first prompts again."""
    total = -(-count // batch) * batch
    return (list(range(start, start + batch)) for start in range(0, total, batch))


def _converse(
    engine: Engine, items: Sequence[Item], group: Sequence[int], load: Load, measurement: Measurement
) -> list[Completion]:
    """Run all turns of a group's conversations. Returns the last answers."""
    conversations = [WorkloadConversation(items[number % len(items)]) for number in group]
    last: dict[int, Completion] = {}
    for turn in range(max(len(conversation.item.turns) for conversation in conversations)):
        unfinished = [i for i, conversation in enumerate(conversations) if turn < len(conversation.item.turns)]
        prompts = [conversations[i].next_prompt(turn) for i in unfinished]
        turn_items = [conversations[i].item for i in unfinished]
        done = _run_together(engine, turn_items, prompts, load, measurement)
        for i, completion in zip(unfinished, done, strict=True):
            conversations[i].add_answer(completion.text)
            last[i] = completion
    return [last[i] for i in range(len(conversations))]


class WorkloadConversation:
    """The messages of a conversation so far."""

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


class StreamTimer:
    """Notes when the chunks of a request come, and reads them when it has ended: a thread for each request would take
    the interpreter lock from the engine, which at 64 requests on a GPU makes it four times as slow."""

    def __init__(self, handle: RequestHandle) -> None:
        self.handle = handle
        self.times = list[float]()  # in seconds
        handle.notify(lambda: self.times.append(time.perf_counter()))

    def stamps(self) -> list[tuple[float, int]]:
        """The time and the number of tokens of each chunk with tokens, once the request has ended. Chunks that came
        before the first note have its time."""
        chunks = list(self.handle)
        early = max(0, len(chunks) - len(self.times))
        times = [*self.times[:1] * early, *self.times[len(self.times) - len(chunks) + early :]]
        pairs = zip(times, chunks, strict=True)
        return [(when, len(chunk.token_ids)) for when, chunk in pairs if chunk.token_ids]


def _run_together(
    engine: Engine,
    items: Sequence[Item],
    prompts: Sequence[Prompt],
    load: Load,
    measurement: Measurement,
) -> list[Completion]:
    """Run one turn of a group, all requests at the same time."""
    started, timers = time.perf_counter(), list[StreamTimer]()
    try:
        for item, prompt in zip(items, prompts, strict=True):
            options = GenerationOptions(load.max_tokens, stop=item.stop, raw=item.raw, speculation=load.speculation)
            (handle,) = engine.submit(prompt, load.sampling, options)
            timers.append(StreamTimer(handle))
        for timer in timers:
            timer.handle.wait()
    except BaseException:
        for timer in timers:
            timer.handle.cancel()
        raise
    ended = time.perf_counter()
    stamps = [timer.stamps() for timer in timers]
    done = [_finished(timer.handle) for timer in timers]
    add_times(measurement, stamps, started, ended)
    add_counts(measurement, done, engine)
    return done


def _finished(handle: RequestHandle) -> Completion:
    done = handle.result()
    if done.error:
        raise ValueError(f"the engine failed on a prompt: {done.error}")
    return done


def add_times(measurement: Measurement, stamps: Sequence[list[tuple[float, int]]], start: float, end: float) -> None:
    """Add the times of one group to a measurement."""
    first_times = [row[0][0] for row in stamps if row]
    all_started = max(first_times, default=end)
    later = [(when, count) for row in stamps for when, count in row[1:] if when > all_started]
    measurement.seconds += end - start
    measurement.decoded += sum(count for _, count in later)
    measurement.decoding += max((when for when, _ in later), default=all_started) - all_started
    measurement.first += [when - start for when in first_times]


def add_counts(measurement: Measurement, done: Sequence[Completion], engine: Engine) -> None:
    """Add the tokens and the passes of one group. Engines without batching run separate passes for each request."""
    drafted = any(completion.stats.drafted for completion in done)
    batched = engine.capabilities.batch_drafting if drafted else engine.capabilities.batch
    cycles = [completion.stats.cycles for completion in done]
    measurement.passes += max(cycles) if batched else sum(cycles)
    for completion in done:
        measurement.tokens += len(completion.token_ids)
        measurement.context += completion.stats.cycles * (completion.prompt_tokens + len(completion.token_ids) // 2)
        measurement.tally.merge(completion.stats)


def warm(engine: Engine, items: Sequence[Item], load: Load) -> None:
    """Warm the engine up with a few tokens, which are not measured."""
    batch = list(islice(cycle(items), load.batch))
    measure(engine, batch, Load(load.batch, load.temperature, min(8, load.max_tokens), load.speculation))
