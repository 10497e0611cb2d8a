"""What every engine takes and gives, whoever runs the model."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines.options import GenerationOptions, Speculation, checked
from slipstream.engines.prompt import Prompt, split_prompts
from slipstream.models.text.codec import TextCodec

__all__ = [
    "Capabilities",
    "Chunk",
    "Completion",
    "Engine",
    "GenerationOptions",
    "Logprob",
    "Prompt",
    "RequestHandle",
    "Speculation",
    "SpeculationStats",
    "Stream",
    "check_process",
    "checked",
]


@dataclass(frozen=True)
class Logprob:
    """log p of an emitted token under the target's own distribution, before any shaping, and the likeliest others."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chunk:
    """What one cycle brought for one request; `finish` is set on the last one."""

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[Logprob, ...] = ()
    finish: str | None = None
    error: str | None = None
    pieces: tuple[str, ...] = ()  # the text that became final with each token; together with a last rest, `text`


@dataclass
class SpeculationStats:
    """Counts of drafting, for one request or many."""

    cycles: int = 0
    emitted: int = 0
    drafted: list[int] = field(default_factory=list)  # by position
    accepted: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int, emitted: int) -> None:
        """A cycle that drafted a chain."""
        self.book([1] * drafted, accepted, emitted)

    def book(self, drafted: Sequence[int], accepted: int, emitted: int) -> None:
        """A cycle that drafted so many tokens for each position, side by side in a tree."""
        self.cycles += 1
        self.emitted += emitted
        if not drafted:
            return
        for counts, new in ((self.drafted, drafted), (self.accepted, [1] * accepted)):
            counts += [0] * (len(new) - len(counts))
            for i, count in enumerate(new):
                counts[i] += count

    @property
    def tau(self) -> float:
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def acceptance(self) -> list[float]:
        """Share of drafted tokens kept, by position."""
        kept = [*self.accepted, *[0] * len(self.drafted)]
        return [a / d for a, d in zip(kept, self.drafted, strict=False)]

    @property
    def wasted(self) -> int:
        return sum(self.drafted) - sum(self.accepted)

    def merge(self, other: SpeculationStats) -> None:
        self.cycles += other.cycles
        self.emitted += other.emitted
        for mine, theirs in ((self.drafted, other.drafted), (self.accepted, other.accepted)):
            mine += [0] * (len(theirs) - len(mine))
            for i, count in enumerate(theirs):
                mine[i] += count


@dataclass(frozen=True)
class Guarantee:
    """What an output promises."""

    rule: str  # the verification rule by its name, or "its own" for a peer's
    lossless: bool | None = (
        None  # the rule keeps the target's distribution; None: a peer's rule, of which we do not say
    )
    repeatable: Literal["bit for bit", "up to ties"] | None = None  # the same request gives the same tokens again


@dataclass(frozen=True)
class Completion:
    """One finished sample of one request."""

    prompt_tokens: int
    text: str
    tokens: list[int]
    origins: list[Origin]
    logprobs: list[Logprob]
    finish: str
    error: str | None
    tally: SpeculationStats
    guarantee: Guarantee

    @property
    def rule(self) -> str:
        return self.guarantee.rule

    @property
    def lossless(self) -> bool | None:
        return self.guarantee.lossless

    @property
    def repeatable(self) -> str | None:
        """ "bit for bit", "up to ties" (of two tokens that are equally good within rounding), or None: not promised."""
        return self.guarantee.repeatable

    @property
    def tau(self) -> float:
        return self.tally.tau

    @property
    def acceptance(self) -> list[float]:
        return self.tally.acceptance


@dataclass(frozen=True)
class Capabilities:
    """What an engine offers. Whatever is not named here it refuses; nothing is ignored."""

    drafters: tuple[str, ...]  # "none" is plain decoding; "draft_model" may also be a model's name or folder
    rules: tuple[str, ...] = ()  # verification rules one may choose from; none where the engine has its own
    sampling: frozenset[str] = frozenset()  # fields of `Sampling`, and repetition, presence, frequency for penalties
    logprobs: bool = False
    grammar: bool = False
    min_tokens: bool = False
    batch: bool = False  # requests share passes of the target in plain decoding
    batch_drafting: bool = False  # and with a drafter
    seed: bool = False  # one seed, one text, however often it is asked for
    origins: bool = False  # tells accepted tokens from plain ones
    switch: bool = False  # one request may turn speculation off, or choose another depth
    not_drafting: frozenset[str] = frozenset()  # of the above, what goes with plain decoding only


class RequestHandle(ABC):
    """A request under way: iterate over its chunks, or wait for its completion."""

    @abstractmethod
    def __iter__(self) -> Iterator[Chunk]: ...

    @abstractmethod
    def result(self) -> Completion: ...

    @abstractmethod
    def cancel(self) -> None: ...


class Engine(ABC):
    """Takes requests from any thread, gives their text in chunks."""

    capabilities: ClassVar[Capabilities]

    @property
    @abstractmethod
    def label(self) -> str:
        """The model as it is run: name, quantisation, precision; for every output."""

    @property
    @abstractmethod
    def text(self) -> TextCodec:
        """The model's tokenizer and chat template."""

    @property
    @abstractmethod
    def quantised(self) -> str | None:
        """The format the weights were rounded to, such as Q4_1."""

    @property
    def version(self) -> str:
        """Who runs the model, and in which version."""
        from slipstream import __version__

        return f"slipstream {__version__}"

    @abstractmethod
    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, wish: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        """Start `wish.n` samples of a request."""

    @abstractmethod
    def close(self) -> None:
        """End what is under way and give everything back."""

    @property
    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Counts since the start."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        **wish: Any,
    ) -> list[Completion]:
        """Complete one prompt or several, all at once; `n` samples of a prompt stand side by side."""
        many, asked, tickets = split_prompts(prompts), GenerationOptions.of(wish), list[RequestHandle]()
        one = sampling is None or isinstance(sampling, Sampling | str | bytes) or not isinstance(sampling, Sequence)
        each = [sampling] * len(many) if one else list(sampling)  # type: ignore[arg-type]
        if len(each) != len(many):
            raise ValueError(f"there are {len(many)} prompts and {len(each)} samplings; give one, or one for each")
        try:
            for prompt, how in zip(many, each, strict=True):
                tickets += self.submit(prompt, how, asked)  # type: ignore[arg-type]
            return [ticket.result() for ticket in tickets]
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            raise

    def stream(self, prompt: Prompt, sampling: Sampling | None = None, **wish: Any) -> Stream:
        """The chunks of one sample as they come; leaving the loop or deleting the stream cancels the request."""
        asked = GenerationOptions.of(wish)
        if asked.n != 1:
            raise ValueError(f"n is {asked.n}; a stream is one sample, so use generate or submit for more")
        (ticket,) = self.submit(prompt, sampling, asked)
        return Stream(ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream(Iterator[Chunk]):
    """The chunks of a request. The request is cancelled when nobody holds its stream any more."""

    def __init__(self, ticket: RequestHandle) -> None:
        self._ticket, self._chunks = ticket, iter(ticket)

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel the request; no chunk follows."""
        self._ticket.cancel()
        self._chunks = iter(())

    def __del__(self) -> None:
        self._ticket.cancel()


def check_process(made_in: int) -> None:
    """Refuse a request in a fork of the process that made the engine: the engine's threads are not there."""
    if os.getpid() != made_in:
        raise ValueError("this process was forked from the one that made the engine; make an engine in this one")
