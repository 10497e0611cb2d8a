"""Rows of a batch under way: when each has ended, and what is shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteriaList

from slipstream.core.shapes import Float, Int, Tensor
from slipstream.engines.native.job import Job
from slipstream.hf.chain import Called, Chain, grown
from slipstream.hf.prompts import Prompt
from slipstream.hf.record import Recorder


class Line:
    """One row. `output` is what plain `generate` would have so far: criteria were asked after each of its tokens."""

    def __init__(self, prompt: Prompt, job: Job, chain: Chain, called: Called | None) -> None:
        self.prompt, self.job, self.chain, self.called = prompt, job, chain, called
        self.output: list[int] = []
        self.scores: list[Float[Tensor, " vocab"]] = []

    def follow(self, criteria: StoppingCriteriaList, recorder: Recorder | None, scored: bool) -> None:
        """Take over newly emitted tokens one by one; where a criterion says stop, the rest was never said."""
        row = self.job.row
        for token in row.output[len(self.output) :]:
            if scored and recorder is not None:
                self._score(recorder.logits(row, len(self.output)))
            self.output.append(token)
            if criteria and self._stops(criteria, scored):
                del row.tokens[len(self.prompt.tokens) + len(self.output) :], row.origins[len(self.output) :]
                row.finish = "stop"
                break
        if self.job.error is not None:
            raise (self.called and self.called.failure) or RuntimeError(self.job.error)

    def _score(self, logits: Float[Tensor, " vocab"]) -> None:
        ids = grown(self.prompt.ids, self.output)
        self.scores.append(self.chain.whole(ids, logits[None].to(ids.device, copy=True))[0])

    def _stops(self, criteria: StoppingCriteriaList, scored: bool) -> bool:
        scores = tuple(score[None] for score in self.scores) if scored else None
        return bool(criteria(grown(self.prompt.ids, self.output), scores).any())


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


def laid_out(input_ids: Int[Tensor, "batch length"], lines: Sequence[Line], pad: int) -> Int[Tensor, "batch longer"]:
    """What was given, then what was generated, padded on the right."""
    longest = max(len(line.output) for line in lines)
    rows = [line.output + [pad] * (longest - len(line.output)) for line in lines]
    return torch.cat([input_ids, input_ids.new_tensor(rows)], 1)
