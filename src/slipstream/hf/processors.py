"""Splits transformers' list of logits processors into three parts.

Leading processors that `Sampling` implements too (bias, bans, repetition penalty, minimum length) become fields of it.
So do trailing ones (temperature, top-k, top-p, min-p). The processors in between are called at every position, in their
order, with the tokens that plain `generate` would pass, padding included.

The split keeps the order of processors that do not commute: a penalty after a bias stays in the middle, with everything
after it. Types are compared exactly, because a subclass may behave differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as steps

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.sampling import Sampling

# these keep state between calls, or state of the whole batch
REFUSED = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor",
    "WatermarkLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
    "WhisperNoSpeechDetection",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "DiaEOSDelayPatternLogitsProcessor",
)
TRAILING = (steps.TemperatureLogitsWarper, steps.TopKLogitsWarper, steps.TopPLogitsWarper, steps.MinPLogitsWarper)
NAMES = ("temperature", "top_k", "top_p", "min_p")


@dataclass
class LeadingProcessors:
    """The effect of the leading processors, collected as values of `Sampling`."""

    ends: frozenset[int]
    vocab: int
    padded: bool  # transformers' repetition penalty counts padding as seen tokens; `Sampling` does not see padding
    bias: dict[int, float] = field(default_factory=dict)
    suppressed: set[int] = field(default_factory=set)
    penalty: float = 1.0
    min_length: int = 0  # prompt and padding included

    def take(self, step: Any) -> bool:
        """Take this processor over, if that is possible after the ones before it."""
        kind = type(step)
        if kind in (steps.SequenceBiasLogitsProcessor, steps.NoBadWordsLogitsProcessor):
            return self._take_bias(step.sequence_bias)
        if kind is steps.RepetitionPenaltyLogitsProcessor:
            free = not (self.bias or self.padded or step.prompt_ignore_length) and self.penalty == 1
            self.penalty = step.penalty if free else self.penalty
            return free
        if kind is steps.SuppressTokensLogitsProcessor:
            self.suppressed |= {token for token in step.suppress_tokens.tolist() if token < self.vocab}
            return True
        if kind in (steps.MinLengthLogitsProcessor, steps.MinNewTokensLengthLogitsProcessor):
            return self._take_length(step)
        return False

    def _take_bias(self, bias: dict[tuple[int, ...], float]) -> bool:
        if not all(len(tokens) == 1 and value < math.inf for tokens, value in bias.items()):
            return False
        for (token,), value in bias.items():
            if value == -math.inf:
                self.suppressed.add(int(token))
            else:
                self.bias[int(token)] = self.bias.get(int(token), 0.0) + value
        return True

    def _take_length(self, step: Any) -> bool:
        if read_ends(step.eos_token_id, self.vocab) != self.ends:
            return False
        new = type(step) is steps.MinNewTokensLengthLogitsProcessor
        length = step.prompt_length_to_skip + step.min_new_tokens if new else step.min_length
        self.min_length = max(self.min_length, length)
        return True


@dataclass(frozen=True)
class ProcessorChain:
    """A row's processors: its `Sampling`, its minimum length, and the processors called at every position."""

    sampling: Sampling
    min_length: int
    middle: LogitsProcessorList
    all: LogitsProcessorList


def split_processors(processors: Sequence[Any], row: int, leading: LeadingProcessors, sampled: bool) -> ProcessorChain:
    """The chain of one row of the batch. `leading` is filled."""
    for step in processors:
        if type(step).__name__ in REFUSED:
            raise ValueError(
                f"{type(step).__name__} is refused: it keeps state between calls, so it cannot be applied to drafts"
            )
    own = [_for_row(step, row) for step in processors]
    middle = list(own)
    trailing = _split_trailing(middle) if sampled else {"temperature": 0.0}
    while middle and leading.take(middle[0]):
        middle.pop(0)
    sampling = Sampling(
        repetition_penalty=leading.penalty,
        logit_bias=leading.bias,
        suppress_tokens=frozenset(leading.suppressed),
        **trailing,
    )
    return ProcessorChain(sampling, leading.min_length, LogitsProcessorList(middle), LogitsProcessorList(own))


def _for_row(step: Any, row: int) -> Any:
    """A `prefix_allowed_tokens_fn` receives the row's number in the batch, although it is called with one row."""
    if type(step) is not steps.PrefixConstrainedLogitsProcessor:
        return step
    allowed = step._prefix_allowed_tokens_fn
    return steps.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), 1)


def _split_trailing(middle: list[Any]) -> dict[str, Any]:
    """Remove the processors that `Sampling` ends with, in its order. A final normalisation changes no probability."""
    if middle and type(middle[-1]) is steps.LogitNormalization:
        middle.pop()
    values: dict[str, Any] = {}
    left = len(TRAILING)
    while middle and type(middle[-1]) in TRAILING[:left] and _plain(middle[-1]):
        left = TRAILING.index(type(middle[-1]))
        values[NAMES[left]] = getattr(middle.pop(), NAMES[left])
    return values


def _plain(step: Any) -> bool:
    return getattr(step, "filter_value", -math.inf) == -math.inf and getattr(step, "min_tokens_to_keep", 1) == 1


def read_ends(ids: Any, vocab: int) -> frozenset[int]:
    """End tokens that the model can emit. A negative id tells transformers never to end."""
    return frozenset(token for token in ids.reshape(-1).tolist() if 0 <= token < vocab)


class MiddleProcessors:
    """The middle of a chain as the processor of a request."""

    def __init__(self, middle: LogitsProcessorList, ids: Int[Tensor, " length"], prompt: int) -> None:
        self._middle, self._ids, self._prompt = middle, ids, prompt
        self.failure: Exception | None = None

    def __call__(self, tokens: Sequence[int], logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        ids = with_output(self._ids, tokens[self._prompt :])
        try:
            scores: Tensor = self._middle(ids, logits[None].to(ids.device, copy=True))[0]
        except Exception as error:
            self.failure = error  # the batch ends the row, and the user gets their own exception
            raise
        return scores


def with_output(ids: Int[Tensor, " length"], output: Sequence[int]) -> Int[Tensor, "1 longer"]:
    """A row as plain `generate` passes it: the input with its padding, then the generated tokens."""
    return torch.cat([ids, ids.new_tensor(output)])[None]
