"""The engine interface: every engine takes the same requests and returns the same completions."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from slipstream.core.sampling import Sampling
from slipstream.engines.agreement import Agreement
from slipstream.engines.completion import Chunk, Completion, Guarantee, Logprob, SpeculationStats
from slipstream.engines.options import GenerationOptions, Speculation, checked
from slipstream.engines.prompt import Prompt, split_prompts
from slipstream.models.text.codec import TextCodec
from slipstream.plan.policy.drafting_cost import DraftingCost

__all__ = [
    "Capabilities",
    "Chunk",
    "Completion",
    "Engine",
    "GenerationOptions",
    "Guarantee",
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
class Capabilities:
    """The features of an engine. It refuses requests for other features; no option is ignored."""

    drafters: Collection[str]  # "none" is plain decoding; "draft_model" may also be a model's name or folder
    rules: Collection[str] = ()  # verification rules to choose from; empty if the engine has its own rule
    sampling: frozenset[str] = frozenset()  # fields of `Sampling`
    logprobs: bool = False
    prompt_logprobs: bool = False
    grammar: bool = False
    min_tokens: bool = False
    prediction: bool = False
    batch: bool = False  # requests share passes of the target in plain decoding
    batch_drafting: bool = False  # and with a drafter
    seed: bool = False  # one seed always gives the same text
    origins: bool = False  # reports which tokens were accepted drafts
    switch: bool = False  # a request may turn speculation off, or choose another depth
    not_drafting: frozenset[str] = frozenset()  # features that work in plain decoding only


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
    def wait(self) -> None:
        """Wait for the end of the request. Nothing is read: its chunks can be iterated over afterwards."""

    @abstractmethod
    def cancel(self) -> None: ...

    @abstractmethod
    def notify(self, ready: Callable[[], None]) -> None:
        """Call `ready` whenever new chunks can be read with `poll`, up to the last chunk.

        It is called from another thread and must return at once, because the engine waits for it."""

    @abstractmethod
    def poll(self) -> list[Chunk]:
        """The chunks that are available now, without waiting."""

    def accepted(self) -> bool:
        """Whether the engine has checked the request, after `Engine.start`. Raises the error of one that it refused."""
        return True

    def undecoded(self) -> list[Any]:
        """As `poll`, but without text where that is not decoded yet. For another process, which decodes it."""
        return self.poll()

    def outcome(self) -> tuple[SpeculationStats, Guarantee, float]:
        """The counts, the guarantee and the seconds in the queue of a request that has ended."""
        completion = self.result()
        return completion.stats, completion.guarantee, completion.queue_seconds


class Engine(ABC):
    """Takes requests from any thread and returns their text in chunks."""

    capabilities: ClassVar[Capabilities]
    start_is_quick: ClassVar[bool] = False  # whether `start` does little more than encode the prompt

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
        """Name, quantisation and precision of the model, as every output shows them."""
        return self.model_info.label

    @property
    def ready(self) -> bool:
        """Whether it takes requests; False while the process that runs the model is started again."""
        return True

    @property
    def drafting_cost(self) -> DraftingCost | None:
        """The measured cost of a drafted token on this machine; None if the engine does not measure it."""
        return None

    @property
    def version(self) -> str:
        """The name and version of the software that runs the model."""
        from slipstream import __version__

        return f"slipstream {__version__}"

    @abstractmethod
    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        """Start `options.n` samples of a request."""

    def start(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        """As `submit`, but does not wait until an engine in another process has checked the request.

        `RequestHandle.accepted` tells when it has; the function of `RequestHandle.notify` is called then, too."""
        return self.submit(prompt, sampling, options)

    def submit_all(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling | None], options: GenerationOptions
    ) -> list[RequestHandle]:
        """Start `options.n` samples of each request, or of none where one is refused."""
        handles: list[RequestHandle] = []
        try:
            for prompt, sampling, prediction in zip(prompts, samplings, options.predictions(len(prompts)), strict=True):
                handles += self.submit(prompt, sampling, replace(options, prediction=prediction))
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return handles

    def agreements(
        self,
        prompt: Prompt,
        sampling: Sampling,
        options: GenerationOptions,
        speculative: Sequence[Completion],
        plain: Sequence[Completion],
    ) -> list[Agreement] | None:
        """Compare the samples of a request with those of plain decoding, and classify each difference.

        None if the engine cannot compute its logits again."""
        return None

    def draft_speed(self, sample: Completion, tokens: int = 32) -> float | None:
        """Tokens per second of the draft model by itself, after the text of a sample.

        None if the drafter is not a model, or if the engine cannot run it alone."""
        return None

    def call(self, function: Callable[..., Any], *values: Any) -> Any:
        """The result of `function(engine, *values)`, in the process that runs the model."""
        return function(self, *values)

    @abstractmethod
    def close(self) -> None:
        """End all requests and free all resources."""

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
        """Complete one prompt or several at the same time. The `n` samples of a prompt are adjacent in the result.

        `options` are the fields of `GenerationOptions`. `prediction` may be a list with one text or None per prompt."""
        many, shared, handles = split_prompts(prompts), GenerationOptions.of(options), list[RequestHandle]()
        each: Sequence[Any] = [sampling] * len(many)  # `submit` refuses values of other types
        if isinstance(sampling, Sequence) and not isinstance(sampling, str | bytes):
            each = sampling
        if len(each) != len(many):
            raise ValueError(f"there are {len(many)} prompts and {len(each)} samplings; give one, or one for each")
        try:
            handles += self.submit_all(many, each, shared)
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def stream(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Stream:
        """The chunks of one sample as they are generated. Leaving the loop or deleting the stream cancels the request.

        `options` are the fields of `GenerationOptions`."""
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
    """The chunks of a request. The request is cancelled when its stream is deleted."""

    def __init__(self, handle: RequestHandle) -> None:
        self._handle, self._chunks = handle, iter(handle)

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel the request. No further chunk is returned."""
        self._handle.cancel()
        self._chunks = iter(())

    def __del__(self) -> None:
        self._handle.cancel()


def check_process(made_in: int) -> None:
    """Raise ValueError in a fork of the process that made the engine: a fork does not have the engine's threads."""
    if os.getpid() != made_in:
        raise ValueError("this process was forked from the one that made the engine; make an engine in this one")
