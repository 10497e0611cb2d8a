"""Rows of a batch under way: when each has ended, and what is shown of it."""

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
from slipstream.hf.chain import Called, Chain, grown
from slipstream.hf.prompts import Prompt
from slipstream.hf.record import Recorder
from slipstream.plan.policy import Adaptive


class Line:
    """One row. `output` is what plain `generate` would have so far: criteria were asked after each of its tokens.

    Scores are kept only where there is a recorder, as criteria see them only where the user wants them.
    """

    def __init__(
        self,
        prompt: Prompt,
        job: Job,
        chain: Chain,
        called: Called | None,
        criteria: StoppingCriteriaList,
        recorder: Recorder | None,
    ) -> None:
        self.prompt, self.job = prompt, job
        self._chain, self._called, self._criteria, self._recorder = chain, called, criteria, recorder
        self.output: list[int] = []
        self.scores: list[Float[Tensor, " vocab"]] = []

    def follow(self) -> None:
        """Take over newly emitted tokens one by one; where a criterion says stop, the rest was never said."""
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
            raise (self._called and self._called.failure) or RuntimeError(self.job.error)

    def _score(self, logits: Float[Tensor, " vocab"]) -> None:
        ids = grown(self.prompt.ids, self.output)
        self.scores.append(self._chain.whole(ids, logits[None].to(ids.device, copy=True))[0])

    def _stops(self) -> bool:
        scores = None if self._recorder is None else tuple(score[None] for score in self.scores)
        return bool(self._criteria(grown(self.prompt.ids, self.output), scores).any())


class Show:
    """Hands a streamer one token of every row at a time, as soon as the slowest row has it."""

    def __init__(self, streamer: Any, pad: int) -> None:
        self._streamer, self._pad = streamer, pad
        self._shown = 0

    def follow(self, lines: Sequence[Line]) -> None:
        longest = max(len(line.output) for line in lines)
        ready = min((len(line.output) for line in lines if not line.job.done), default=longest)
        for step in range(self._shown, ready):
            tokens = [line.output[step] if step < len(line.output) else self._pad for line in lines]
            self._streamer.put(torch.tensor(tokens))
        self._shown = max(self._shown, ready)

    def end(self) -> None:
        self._streamer.end()


def decode(model: Model, drafters: Mapping[str, Drafter], lines: Sequence[Line], show: Show | None) -> None:
    """Run all rows to their ends, in this thread and in one batch."""
    limits = Limits(rows=len(lines), tokens=sys.maxsize, prefill=sys.maxsize)
    verifiers = {line.job.plan.rule: rules.get(line.job.plan.rule)() for line in lines}
    batch = Batch(model, drafters.__getitem__, verifiers.__getitem__, Adaptive(), limits)
    for line in lines:
        batch.check(line.job)
        batch.add(line.job)
    while batch.step():
        for line in lines:
            line.follow()
        if show:
            show.follow(lines)
    if show:
        show.end()
    for what in batch.failures:
        warnings.warn(f"speculation went on without a part of it that failed: {what}", RuntimeWarning, stacklevel=2)


def laid_out(input_ids: Int[Tensor, "batch length"], lines: Sequence[Line], pad: int) -> Int[Tensor, "batch longer"]:
    """What was given, then what was generated, padded on the right."""
    longest = max(len(line.output) for line in lines)
    rows = [line.output + [pad] * (longest - len(line.output)) for line in lines]
    return torch.cat([input_ids, input_ids.new_tensor(rows)], 1)
