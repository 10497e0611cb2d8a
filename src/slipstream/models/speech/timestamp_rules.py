"""The rules of a transcript with timestamps, as a logits processor. They are those of OpenAI's decoder.

The processor is a pure function of the tokens before a position and its logits. So it shapes the laws of draft and
target alike, at every node of a draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from slipstream.core.array_types import Float, Int, Tensor


@dataclass(frozen=True)
class TranscriptRules:
    """Suppression of tokens that are no transcript, and the order of timestamps.

    `begin`: length of the prompt. `first_time`: the token of 0.00; None: without timestamps."""

    begin: int
    end_token: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]  # at the first position
    first_time: int | None
    latest_start: int = 50  # the first timestamp is at most so many steps of 0.02 s

    def __call__(self, tokens: Sequence[int], logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        logits = logits.index_fill(0, self._suppressed_on(logits.device), -math.inf)
        output = tokens[self.begin :]
        if not output:
            logits[list(self.suppressed_first)] = -math.inf
        if self.first_time is not None:
            self._order(output, logits, self.first_time)
        return logits

    def _suppressed_on(self, device: torch.device) -> Int[Tensor, " suppressed"]:
        if device not in self._by_device:
            self._by_device[device] = torch.tensor(self.suppressed, dtype=torch.long, device=device)
        return self._by_device[device]

    @cached_property
    def _by_device(self) -> dict[torch.device, Tensor]:
        return {}

    def _order(self, output: Sequence[int], logits: Float[Tensor, " vocab"], first: int) -> None:
        """Timestamps come in pairs except at the end, never decrease, and begin the transcript."""
        if not output:
            logits[:first] = -math.inf
            logits[first + self.latest_start + 1 :] = -math.inf
            return
        after_time = output[-1] >= first
        after_pair = len(output) < 2 or output[-2] >= first
        if after_time and after_pair:
            logits[first:] = -math.inf  # text follows the start of a segment
        elif after_time:
            logits[: self.end_token] = -math.inf  # after the end of a segment comes the start of the next, or the end
        last = next((token for token in reversed(output) if token >= first), None)
        if last is not None:
            logits[first : last if after_time and not after_pair else last + 1] = -math.inf
        # if some time is likelier than every single token of text, a time follows; without a read by the host
        times = torch.logsumexp(logits[first:].float(), 0) > logits[:first].amax()
        logits[:first].masked_fill_(times, -math.inf)
