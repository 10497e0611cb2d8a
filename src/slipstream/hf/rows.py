"""The rows of a running batch: stopping criteria, scores, and tokens for a streamer."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteriaList

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import Drafter, Model
from slipstream.core.rules import rules
from slipstream.engines.job import Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.scheduler import Limits
from slipstream.hf.processors import MiddleProcessors, ProcessorChain, with_output
from slipstream.hf.prompts import PromptRow
from slipstream.hf.record import LogitsRecorder
from slipstream.plan.policy.policies import Adaptive


class OutputRow:
    """One row. `output` holds its tokens so far. The criteria were called after each of them, as in plain `generate`.

    Scores are kept only if there is a recorder. Criteria receive them only if the user requested scores.
    """

    def __init__(
        self,
        prompt: PromptRow,
        job: Job,
        chain: ProcessorChain,
        middle: MiddleProcessors | None,
        criteria: StoppingCriteriaList,
        recorder: LogitsRecorder | None,
    ) -> None:
        self.prompt, self.job = prompt, job
        self._chain, self._middle, self._criteria, self._recorder = chain, middle, criteria, recorder
        self.output: list[int] = []
        self.scores: list[Float[Tensor, " vocab"]] = []

    def update(self) -> None:
        """Append newly emitted tokens one by one. If a criterion stops the row, later tokens are dropped."""
        row = self.job.row
        for token in row.output[len(self.output) :]:
            if self._recorder is not None:
                self._score(self._recorder.logits(row)[len(self.output)])
            self.output.append(token)
            if self._criteria and self._stops():
                del row.tokens[len(self.prompt.tokens) + len(self.output) :], row.origins[len(self.output) :]
                row.finish_reason = "stop"
                return
        if self.job.error is not None:
            raise (self._middle and self._middle.failure) or RuntimeError(self.job.error)

    def _score(self, logits: Float[Tensor, " vocab"]) -> None:
        ids = with_output(self.prompt.ids, self.output)
        self.scores.append(self._chain.all(ids, logits[None].to(ids.device, copy=True))[0])

    def _stops(self) -> bool:
        scores = None if self._recorder is None else tuple(score[None] for score in self.scores)
        return bool(self._criteria(with_output(self.prompt.ids, self.output), scores).any())


class StreamerFeed:
    """Passes one token of every row at a time to a streamer, as soon as the slowest row has it."""

    def __init__(self, streamer: Any, pad: int) -> None:
        self._streamer, self._pad = streamer, pad
        self._shown = 0

    def update(self, rows: Sequence[OutputRow]) -> None:
        longest = max(len(row.output) for row in rows)
        ready = min((len(row.output) for row in rows if not row.job.done), default=longest)
        for step in range(self._shown, ready):
            tokens = [row.output[step] if step < len(row.output) else self._pad for row in rows]
            self._streamer.put(torch.tensor(tokens))
        self._shown = max(self._shown, ready)

    def end(self) -> None:
        self._streamer.end()


def decode(model: Model, drafters: Mapping[str, Drafter], rows: Sequence[OutputRow], feed: StreamerFeed | None) -> None:
    """Run all rows to their ends, in this thread and in one batch."""
    limits = Limits(rows=len(rows), tokens=sys.maxsize, prefill=sys.maxsize)
    verifiers = {row.job.plan.rule: rules.get(row.job.plan.rule)() for row in rows}
    batch = Batch(model, drafters.__getitem__, verifiers.__getitem__, Adaptive(), limits)
    for row in rows:
        batch.check(row.job)
        batch.add(row.job)
    while batch.step():
        for row in rows:
            row.update()
        if feed:
            feed.update(rows)
    if feed:
        feed.end()
    for failure in batch.failures:
        warnings.warn(f"a part of speculation failed and was left out: {failure}", RuntimeWarning, stacklevel=2)


def output_ids(
    input_ids: Int[Tensor, "batch length"], rows: Sequence[OutputRow], pad: int
) -> Int[Tensor, "batch longer"]:
    """The input followed by the generated tokens, padded on the right."""
    longest = max(len(row.output) for row in rows)
    outputs = [row.output + [pad] * (longest - len(row.output)) for row in rows]
    return torch.cat([input_ids, input_ids.new_tensor(outputs)], 1)
