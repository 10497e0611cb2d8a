"""What every engine takes and gives, whoever runs the model."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines.options import GenerationOptions, Speculation, checked
from slipstream.engines.prompt import Prompt, split_prompts
from slipstream.models.text.codec import TextCodec
from slipstream.plan.drafting_cost import DraftingCost

__all__ = [
    "Capabilities",
    "Chunk",
    "Completion",
    "Engine",
    "GenerationOptions",
    "Logprob",
    "ModelInfo",
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

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...]  # token ids and their log-probabilities


@dataclass(frozen=True)
class Chunk:
    """The output of one cycle for one request; `finish_reason` is set on the last one."""

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: str | None = None  # "stop", "length", "cancelled" or "error"
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

    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length", "cancelled" or "error"
    logprobs: list[Logprob]
    prompt_tokens: int
    origins: list[Origin]  # of each token
    stats: SpeculationStats
    guarantee: Guarantee
    error: str | None = None

    @property
    def completion_tokens(self) -> int:
        return len(self.token_ids)

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
        return self.stats.tau

    @property
    def acceptance(self) -> list[float]:
        return self.stats.acceptance


@dataclass(frozen=True)
class Capabilities:
    """What an engine offers. Whatever is not named here it refuses; nothing is ignored."""

    drafters: Collection[str]  # "none" is plain decoding; "draft_model" may also be a model's name or folder
    rules: Collection[str] = ()  # verification rules one may choose from; none where the engine has its own
    sampling: frozenset[str] = frozenset()  # fields of `Sampling`
    logprobs: bool = False
    grammar: bool = False
    min_tokens: bool = False
    batch: bool = False  # requests share passes of the target in plain decoding
    batch_drafting: bool = False  # and with a drafter
    seed: bool = False  # one seed, one text, however often it is asked for
    origins: bool = False  # tells accepted tokens from plain ones
    switch: bool = False  # one request may turn speculation off, or choose another depth
    not_drafting: frozenset[str] = frozenset()  # of the above, what goes with plain decoding only


@dataclass(frozen=True)
class ModelInfo:
    """The model as an engine runs it."""

    name: str
    label: str  # name, quantisation and precision, for every output
    quantised: str | None  # the format the weights were rounded to, such as Q4_1
    vocab_size: int
    context_length: int


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
    def model_info(self) -> ModelInfo:
        """The model's name, format and sizes."""

    @property
    @abstractmethod
    def text(self) -> TextCodec:
        """The model's tokenizer and chat template."""

    @property
    def label(self) -> str:
        """The model as it is run: name, quantisation, precision; for every output."""
        return self.model_info.label

    @property
    def drafting_cost(self) -> DraftingCost | None:
        """What a drafted token costs on this machine; None where the engine does not measure it."""
        return None

    @property
    def version(self) -> str:
        """Who runs the model, and in which version."""
        from slipstream import __version__

        return f"slipstream {__version__}"

    @abstractmethod
    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        """Start `options.n` samples of a request."""

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
        **options: Any,
    ) -> list[Completion]:
        """Complete one prompt or several, all at once; `n` samples of a prompt stand side by side."""
        many, shared, handles = split_prompts(prompts), GenerationOptions.of(options), list[RequestHandle]()
        each: Sequence[Any] = [sampling] * len(many)  # `submit` refuses what is no Sampling
        if isinstance(sampling, Sequence) and not isinstance(sampling, str | bytes):
            each = sampling
        if len(each) != len(many):
            raise ValueError(f"there are {len(many)} prompts and {len(each)} samplings; give one, or one for each")
        try:
            for prompt, own in zip(many, each, strict=True):
                handles += self.submit(prompt, own, shared)
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def stream(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Stream:
        """The chunks of one sample as they come; leaving the loop or deleting the stream cancels the request."""
        own = GenerationOptions.of(options)
        if own.n != 1:
            raise ValueError(f"n is {own.n}; a stream is one sample, so use generate or submit for more")
        (handle,) = self.submit(prompt, sampling, own)
        return Stream(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream(Iterator[Chunk]):
    """The chunks of a request. The request is cancelled when nobody holds its stream any more."""

    def __init__(self, handle: RequestHandle) -> None:
        self._handle, self._chunks = handle, iter(handle)

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel the request; no chunk follows."""
        self._handle.cancel()
        self._chunks = iter(())

    def __del__(self) -> None:
        self._handle.cancel()


def check_process(made_in: int) -> None:
    """Refuse a request in a fork of the process that made the engine: the engine's threads are not there."""
    if os.getpid() != made_in:
        raise ValueError("this process was forked from the one that made the engine; make an engine in this one")
