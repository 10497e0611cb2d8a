"""Log-probabilities and hidden states of prompt tokens, for requests that ask for them.

A prompt is scored like a draft that is accepted whole: its first token is committed, the tokens after it are drafted,
and the score pass gives the logits after each of them. All positions are computed, since nothing comes from the prefix
store. Afterwards the KV cache of the row holds the prompt, so it is not read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch

from slipstream.core.interfaces import Model
from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Verdict
from slipstream.engines.job import Job
from slipstream.engines.logprobs import token_logprobs

LOGITS = 1 << 23  # of one pass, tokens times vocabulary: 32 MiB in float32
GPU_LOGITS = 1 << 26  # the same on a GPU, whose passes take the same time for many tokens


class PromptScorer:
    """Scores at most one chunk of prompt tokens in a step, of all rows together."""

    def __init__(self, model: Model, limit: int, on_gpu: bool = False) -> None:
        most = GPU_LOGITS if on_gpu else LOGITS
        self._model, self._limit = model, max(1, min(limit, most // model.vocab))

    def step(self, jobs: Sequence[Job]) -> list[Job]:
        """Score a chunk of the prompts whose log-probabilities are wanted. Returns the jobs that do not wait for it."""
        counts: dict[Job, int] = {}
        left = self._limit
        for job in jobs:
            if left and job.unscored and not job.done:
                counts[job] = min(left, job.unscored)
                left -= counts[job]
        if counts:
            self._score(counts)
        return [job for job in jobs if not job.unscored]

    def _score(self, counts: dict[Job, int]) -> None:
        """Score so many tokens of each prompt. A pass that fails is tried again row by row."""
        try:
            self._pass(counts)
        except Exception as error:
            if len(counts) == 1:
                (job,) = counts
                job.end("error", f"the model failed: {error}")
            else:
                for job, count in counts.items():
                    self._score({job: count})

    def _pass(self, counts: dict[Job, int]) -> None:
        jobs, drafted = list(counts), [count - 1 for count in counts.values()]
        tokens = [job.row.request.prompt[job.scored : job.scored + counts[job]] for job in jobs]
        token = torch.tensor([token for own in tokens for token in own[:-1]], dtype=torch.long)
        draft = Draft(Tree.chains(drafted), token, OneHot(token, self._model.vocab))
        rows = [job.row for job in jobs]
        with _cut(jobs):
            scores = self._model.score(rows, draft)
            self._model.commit(rows, _accept_all(drafted, [own[-1] for own in tokens]))
        first = [len(jobs) + start for start in accumulate(drafted, initial=0)]  # node of each row among the slots
        for r, (job, own) in enumerate(zip(jobs, tokens, strict=True)):
            slots = torch.tensor([r, *range(first[r], first[r + 1])], device=scores.logits.device)
            if job.state_layer is not None:
                job.states.append(scores.features[job.state_layer][slots].float().cpu())
            assert job.prompt_logprobs is not None, "only such prompts are scored"
            job.prompt_logprobs += token_logprobs(scores.logits[slots], own, job.prompt_top or 0)
            if not job.unscored:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        job.prefilled = max(0, len(job.row.request.prompt) - 1)
        if job.row.room(self._model.context) == 0:
            job.end("length")


@contextmanager
def _cut(jobs: Sequence[Job]) -> Iterator[None]:
    """In here the rows hold only the tokens that are scored already."""
    for job in jobs:
        del job.row.tokens[job.scored :]
    try:
        yield
    finally:
        for job in jobs:
            job.row.tokens[:] = job.row.request.prompt


def _accept_all(drafted: Sequence[int], tokens: Sequence[int]) -> Verdict:
    """The verdict that accepts every drafted token of chains, followed by these tokens."""
    starts = list(accumulate(drafted, initial=0))
    path = torch.full((len(drafted), max(drafted)), -1)
    for r, count in enumerate(drafted):
        path[r, :count] = torch.arange(starts[r], starts[r] + count)
    return Verdict(path, torch.tensor(tokens), torch.ones(len(drafted), dtype=torch.bool))
