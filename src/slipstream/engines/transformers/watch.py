"""Observes a call of `generate`.

Hooks on the target's passes record drafts and logits. A stopping criterion receives the emitted tokens and ends rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from slipstream.engines.base import Logprob
from slipstream.engines.job import Job
from slipstream.engines.logprobs import token_logprobs
from slipstream.engines.transformers.randomness import SeededGenerators

Advance = Callable[[Job, Sequence[int], int, int, Sequence[Logprob]], None]


class StepWatcher:
    """A stopping criterion: `generate` calls it after every step with all tokens so far. True ends a row."""

    def __init__(self, model: Any, jobs: Sequence[Job], advance: Advance, generators: SeededGenerators) -> None:
        self._model, self._jobs, self._advance, self._generators = model, jobs, advance, generators
        self._config = model.config.get_text_config()
        self._layers = self._config.num_hidden_layers
        self._seen = max(len(job.row.request.prompt) for job in jobs)  # prompts are padded to the longest
        self._drafted: list[int] = []
        self._logits: torch.Tensor | None = None
        self._wanted = any(job.top is not None for job in jobs)
        self._first = True

    @contextmanager
    def hooks(self) -> Iterator[None]:
        before = self._model.register_forward_pre_hook(self._before, with_kwargs=True)
        after = self._model.register_forward_hook(self._after)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _mine(self) -> bool:
        """Whether a pass is a target pass. With early exit the target also drafts, in passes through fewer layers."""
        return bool(self._config.num_hidden_layers == self._layers)

    def _before(self, _: Any, __: Any, kwargs: dict[str, Any]) -> None:
        if self._mine():
            context = self._seen if self._first else 1  # before the draft: the prompt, then only the last token
            self._drafted = kwargs["input_ids"][0, context:].tolist() if len(self._jobs) == 1 else []
            self._first = False

    def _after(self, _: Any, __: Any, output: Any) -> None:
        if self._wanted and self._mine():
            self._logits = output.logits[:, -len(self._drafted) - 1 :]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        new = input_ids[:, self._seen :].tolist()
        self._seen = input_ids.shape[1]
        self._generators.pause()  # the reader of a last chunk may sample
        for i, (job, tokens) in enumerate(zip(self._jobs, new, strict=True)):
            if not job.done and not job.cancelled:
                self._publish(i, job, tokens)
        over = [job.done or job.cancelled for job in self._jobs]
        if not all(over):
            self._generators.resume()
        return torch.tensor(over, device=input_ids.device)

    def _publish(self, i: int, job: Job, tokens: list[int]) -> None:
        pairs = zip(tokens, self._drafted, strict=False)
        accepted = next((n for n, (got, drafted) in enumerate(pairs) if got != drafted), None)
        kept = min(len(tokens), len(self._drafted)) if accepted is None else accepted
        logprobs: list[Logprob] = []
        if job.top is not None and self._logits is not None:
            logprobs = token_logprobs(self._logits[i, : len(tokens)], tokens, job.top)
        self._advance(job, tokens, len(self._drafted), kept, logprobs)
