"""transformers' chain of logits processors, cut in three.

What stands first and means the same to our sampling (bias, bans, the repetition penalty, the shortest length) is done
there. So is what stands last (temperature, top-k, top-p, min-p). Whatever lies between is called at every place, in its
order, with the tokens before the place as plain `generate` would show them, padding included.

A cut must not change the order of two steps that do not commute: a penalty after a bias stays in the middle, and so
does all that follows it. Types are compared exactly, since a subclass may do anything.
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

# these keep what an earlier call told them, or hold something of the whole batch
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
LAST = (steps.TemperatureLogitsWarper, steps.TopKLogitsWarper, steps.TopPLogitsWarper, steps.MinPLogitsWarper)
NAMES = ("temperature", "top_k", "top_p", "min_p")


@dataclass
class Head:
    """What our sampling does before the middle of the chain."""

    ends: frozenset[int]
    vocab: int
    padded: bool  # the row: its padding counts as seen for the penalty, which ours does not look at
    bias: dict[int, float] = field(default_factory=dict)
    suppressed: set[int] = field(default_factory=set)
    penalty: float = 1.0
    least: int = 0  # shortest length, prompt and padding included

    def takes(self, step: Any) -> bool:
        """Whether this step could be taken over, after those before it."""
        kind = type(step)
        if kind in (steps.SequenceBiasLogitsProcessor, steps.NoBadWordsLogitsProcessor):
            return self._takes_bias(step.sequence_bias)
        if kind is steps.RepetitionPenaltyLogitsProcessor:
            free = not (self.bias or self.padded or step.prompt_ignore_length) and self.penalty == 1
            self.penalty = step.penalty if free else self.penalty
            return free
        if kind is steps.SuppressTokensLogitsProcessor:
            self.suppressed |= {token for token in step.suppress_tokens.tolist() if token < self.vocab}
            return True
        if kind in (steps.MinLengthLogitsProcessor, steps.MinNewTokensLengthLogitsProcessor):
            return self._takes_length(step)
        return False

    def _takes_bias(self, bias: dict[tuple[int, ...], float]) -> bool:
        if not all(len(tokens) == 1 and value < math.inf for tokens, value in bias.items()):
            return False
        for (token,), value in bias.items():
            if value == -math.inf:
                self.suppressed.add(int(token))
            else:
                self.bias[int(token)] = self.bias.get(int(token), 0.0) + value
        return True

    def _takes_length(self, step: Any) -> bool:
        if read_ends(step.eos_token_id, self.vocab) != self.ends:
            return False
        new = type(step) is steps.MinNewTokensLengthLogitsProcessor
        least = step.prompt_length_to_skip + step.min_new_tokens if new else step.min_length
        self.least = max(self.least, least)
        return True


@dataclass(frozen=True)
class Chain:
    """A row's processors: what sampling does, the shortest length, and what is called at every place."""

    sampling: Sampling
    least: int
    middle: LogitsProcessorList
    whole: LogitsProcessorList


def cut(processors: Sequence[Any], row: int, head: Head, sampled: bool) -> Chain:
    """The chain of one row of the batch; `head` is empty and is filled."""
    for step in processors:
        if type(step).__name__ in REFUSED:
            raise ValueError(f"{type(step).__name__} is refused: it keeps a state, so it cannot be asked about drafts")
    whole = [_own(step, row) for step in processors]
    middle = list(whole)
    last = _cut_last(middle) if sampled else {"temperature": 0.0}
    while middle and head.takes(middle[0]):
        middle.pop(0)
    sampling = Sampling(
        repetition_penalty=head.penalty, logit_bias=head.bias, suppress_tokens=frozenset(head.suppressed), **last
    )
    return Chain(sampling, head.least, LogitsProcessorList(middle), LogitsProcessorList(whole))


def _own(step: Any, row: int) -> Any:
    """A function of allowed tokens is told the row's number in the batch, though it is asked about one row alone."""
    if type(step) is not steps.PrefixConstrainedLogitsProcessor:
        return step
    allowed = step._prefix_allowed_tokens_fn
    return steps.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), 1)


def _cut_last(middle: list[Any]) -> dict[str, Any]:
    """Take the steps our law ends with off the end, in its order; a normalisation after them changes no law."""
    if middle and type(middle[-1]) is steps.LogitNormalization:
        middle.pop()
    found: dict[str, Any] = {}
    left = len(LAST)
    while middle and type(middle[-1]) in LAST[:left] and _plain(middle[-1]):
        left = LAST.index(type(middle[-1]))
        found[NAMES[left]] = getattr(middle.pop(), NAMES[left])
    return found


def _plain(step: Any) -> bool:
    return getattr(step, "filter_value", -math.inf) == -math.inf and getattr(step, "min_tokens_to_keep", 1) == 1


def read_ends(ids: Any, vocab: int) -> frozenset[int]:
    """End tokens the model can emit; a negative one is how transformers is told never to end."""
    return frozenset(token for token in ids.reshape(-1).tolist() if 0 <= token < vocab)


class Called:
    """The middle of a chain, as a request's processor."""

    def __init__(self, middle: LogitsProcessorList, ids: Int[Tensor, " length"], prompt: int) -> None:
        self._middle, self._ids, self._prompt = middle, ids, prompt
        self.failure: Exception | None = None

    def __call__(self, tokens: Sequence[int], logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        ids = grown(self._ids, tokens[self._prompt :])
        try:
            scores: Tensor = self._middle(ids, logits[None].to(ids.device, copy=True))[0]
        except Exception as error:
            self.failure = error  # the batch ends the row, and the user gets their own exception
            raise
        return scores


def grown(ids: Int[Tensor, " length"], output: Sequence[int]) -> Int[Tensor, "1 longer"]:
    """A row as plain `generate` shows it: what was given, padding included, then what was generated."""
    return torch.cat([ids, ids.new_tensor(output)])[None]
