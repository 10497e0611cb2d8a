"""Turns requests into jobs: the common part of the native engine and the peers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.core.sampling import Sampling
from slipstream.core.types import Constraint, Request
from slipstream.engines.base import Engine, Guarantee, RequestHandle
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.options import GenerationOptions, Speculation, checked
from slipstream.engines.prompt import ConditionedPrompt, Prompt, encode, encode_all
from slipstream.models.speech.audio import Audio


def _conditioned(request: Request, prompt: Prompt) -> Request:
    """The request with the condition of its prompt, if that has one."""
    if not isinstance(prompt, ConditionedPrompt):
        return request
    return replace(request, condition=prompt.condition, processor=prompt.processor)


class JobEngine(Engine):
    """`submit` checks and encodes a request, makes its decoding plan, and sends one job per sample."""

    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        return self.submit_all([prompt], [sampling], options)

    def submit_all(
        self,
        prompts: Sequence[Prompt],
        samplings: Sequence[Sampling | None],
        options: GenerationOptions | None = None,
    ) -> list[RequestHandle]:
        self._check_running()
        own = checked(None, options)[1]
        each = [checked(sampling, own)[0] for sampling in samplings]
        predictions = own.predictions(len(prompts))
        plans = [
            self._plan(self._drafting(own.speculation, prediction), sampling)
            for sampling, prediction in zip(each, predictions, strict=True)
        ]
        for sampling, plan in zip(each, plans, strict=True):
            self._check_offered(sampling, own, plan)
        prompts = [self._heard(prompt) for prompt in prompts]
        encoded = encode_all(prompts, own.raw, self.text, self.model_info.context_length)
        jobs: list[Job] = []
        for prompt, ids, sampling, plan, prediction in zip(prompts, encoded, each, plans, predictions, strict=True):
            asked = own if own.prediction is None else replace(own, prediction=prediction)
            history = self._history(plan, sampling, own)
            request = _conditioned(
                self.encoded_request(ids, self._law_sampling(plan, sampling), asked, history), prompt
            )
            jobs += self._samples(request, plan, sampling, own)
        self._send(jobs)
        return list(jobs)

    def _drafting(self, speculation: Speculation, prediction: str | None) -> Speculation:
        """A request with a prediction is drafted from it, whatever the engine's drafter is."""
        if prediction is None or speculation.drafter == "none" or not self.capabilities.prediction:
            return speculation
        return replace(speculation, drafter="prediction")

    def _samples(
        self, request: Request, plan: DecodingPlan, sampling: Sampling, options: GenerationOptions
    ) -> list[Job]:
        """The samples of a request."""
        guarantee = self._guarantee(plan, sampling)
        return [
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

    def request(self, prompt: Prompt, sampling: Sampling, options: GenerationOptions) -> Request:
        """The encoded request: prompt and end tokens as ids, and the compiled grammar."""
        prompt = self._heard(prompt)
        ids = encode(prompt, options.raw, self.text, self.model_info.context_length)
        return _conditioned(self.encoded_request(ids, sampling, options), prompt)

    def encoded_request(
        self, token_ids: Sequence[int], sampling: Sampling, options: GenerationOptions, history: str | None = None
    ) -> Request:
        """The same of a prompt whose token ids are known."""
        vocab = self.model_info.vocab_size  # a tokenizer may have more tokens than the model
        (prediction,) = options.predictions(1)
        eos_token_ids = () if options.ignore_eos else (token for token in self.text.ends if token < vocab)
        return Request(
            prompt=token_ids,
            sampling=sampling,
            max_tokens=options.max_tokens,
            ends=options.stop_token_ids.union(eos_token_ids),
            min_tokens=options.min_tokens,
            grammar=self._constraint(options),
            history=history,
            prediction=self._predicted(prediction),
        )

    def _heard(self, prompt: Prompt) -> Prompt:
        """A prompt of audio as token ids and features; any other prompt as it is."""
        if isinstance(prompt, Audio):
            raise ValueError("this engine reads text only; the native engine takes audio")
        return prompt

    def _law_sampling(self, plan: DecodingPlan, sampling: Sampling) -> Sampling:
        """The sampling parameters of the laws that the rule sees."""
        return sampling

    def _history(self, plan: DecodingPlan, sampling: Sampling, options: GenerationOptions) -> str | None:
        """Whose earlier outputs the drafter may use (`Request.history`)."""
        return None

    def _predicted(self, prediction: str | None) -> Sequence[int]:
        """The token ids of a prediction that the model has."""
        if prediction is None:
            return ()
        ids = self.text.encode_output(prediction, "prediction", self.model_info.context_length)
        return ids if max(ids, default=0) < self.model_info.vocab_size else ()

    def _sample(self, request: Request, index: int) -> Request:
        """The request of one of `n` samples."""
        return replace(request, sample=index) if index else request

    def _constraint(self, options: GenerationOptions) -> Callable[[], Constraint] | None:
        """A function that makes the grammar's state for a row; None without a grammar."""
        return None

    def _check_offered(self, sampling: Sampling, options: GenerationOptions, plan: DecodingPlan) -> None:
        """Raise ValueError for features that this engine does not have."""

    @abstractmethod
    def _check_running(self) -> None:
        """Raise ValueError if the engine cannot decode: after `close`, or in a forked process."""

    @abstractmethod
    def _plan(self, speculation: Speculation, sampling: Sampling) -> DecodingPlan:
        """The decoding plan of a request: its own choices, and the engine's defaults."""

    @abstractmethod
    def _guarantee(self, plan: DecodingPlan, sampling: Sampling) -> Guarantee:
        """The guarantees of an output under this plan."""

    @abstractmethod
    def _send(self, jobs: Sequence[Job]) -> None:
        """Check the jobs against the model and start to decode them."""
