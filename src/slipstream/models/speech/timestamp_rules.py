"""The rules of a transcript with timestamps, as a logits processor. They are those of OpenAI's decoder.

The processor is a pure function of the tokens before a position and its logits. So it shapes the laws of draft and
target alike, at every node of a draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from slipstream.core.array_types import Float, Int, Tensor

if TYPE_CHECKING:
    from slipstream.kernels.gpu.shaping.transcript import TranscriptCycle

_SETTINGS: dict[tuple[object, ...], int] = {}  # numbers of the rules in use, which are quick to compare


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

    @cached_property
    def device_settings(self) -> int:
        settings = self.end_token, self.suppressed, self.suppressed_first, self.first_time, self.latest_start
        return _SETTINGS.setdefault(settings, len(_SETTINGS))

    def row_state(self, tokens: Sequence[int]) -> list[int]:
        """The length of the prompt, and the last timestamp after it; -1 if there is none."""
        first = self.first_time
        times = (token for token in reversed(tokens[self.begin :]) if first is not None and token >= first)
        return [self.begin, next(times, -1)]

    def device_form(self, rows: int, width: int, vocab: int, device: torch.device) -> TranscriptCycle:
        """The rules as kernels, for captured cycles."""
        from slipstream.kernels.gpu.shaping.transcript import TranscriptCycle, TranscriptSettings

        settings = TranscriptSettings(
            self.end_token, self.suppressed, self.suppressed_first, self.first_time, self.latest_start
        )
        return TranscriptCycle(settings, rows, width, vocab, device)

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
