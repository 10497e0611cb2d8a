"""Requests become jobs: the part of an engine that the native one and the peers share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.core.sampling import Sampling
from slipstream.core.types import Constraint, Request
from slipstream.engines.base import Engine, Guarantee, RequestHandle
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.options import GenerationOptions, Speculation, checked
from slipstream.engines.prompt import Prompt, encode


class JobEngine(Engine):
    """`submit` checks and encodes a request, decides how it is decoded, and sends one job per sample."""

    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        self._check_running()
        sampling, options = checked(sampling, options)
        plan = self._plan(options.speculation, sampling)
        self._check_offered(sampling, options, plan)
        request = self.request(prompt, sampling, options)
        guarantee = self._guarantee(plan, sampling)
        jobs = [
            Job(
                self._sample(request, i),
                plan,
                self.text.stream(),
                options.stop,
                options.logprobs,
                guarantee,
                options.prompt_logprobs,
                options.tenant,
            )
            for i in range(options.n)
        ]
        self._send(jobs)
        return list(jobs)

    def request(self, prompt: Prompt, sampling: Sampling, options: GenerationOptions) -> Request:
        """A request as it is decoded: prompt and end tokens as ids, the grammar compiled."""
        vocab = self.model_info.vocab_size  # a tokenizer may know more tokens than the model
        eos_token_ids = () if options.ignore_eos else (token for token in self.text.ends if token < vocab)
        return Request(
            prompt=encode(prompt, options.raw, self.text, self.model_info.context_length),
            sampling=sampling,
            max_tokens=options.max_tokens,
            ends=options.stop_token_ids.union(eos_token_ids),
            min_tokens=options.min_tokens,
            grammar=self._constraint(options),
        )

    def _sample(self, request: Request, index: int) -> Request:
        """The request of one of `n` samples."""
        return replace(request, sample=index)

    def _constraint(self, options: GenerationOptions) -> Callable[[], Constraint] | None:
        """A maker of what constrains the text, where an engine can constrain it."""
        return None

    def _check_offered(self, sampling: Sampling, options: GenerationOptions, plan: DecodingPlan) -> None:
        """Refuse what this engine does not offer."""

    @abstractmethod
    def _check_running(self) -> None:
        """Refuse requests that nobody would decode: after `close`, or in a forked process."""

    @abstractmethod
    def _plan(self, speculation: Speculation, sampling: Sampling) -> DecodingPlan:
        """How a request is decoded: its own choices, then the engine's."""

    @abstractmethod
    def _guarantee(self, plan: DecodingPlan, sampling: Sampling) -> Guarantee:
        """What an output under this plan promises."""

    @abstractmethod
    def _send(self, jobs: Sequence[Job]) -> None:
        """Check the jobs against the model and start to decode them."""
