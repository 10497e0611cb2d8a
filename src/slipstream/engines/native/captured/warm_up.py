"""Requests of the engine itself, before anybody else's: on a GPU, the usual cycles are captured when they have ended.

A size of cycle is compiled and captured when it is first met, which takes as long as hundreds of cycles. Caches grow
with the rows, and captured cycles do not outlive that. So many rows come first. Speech has fewer rows, greedy ones,
with timestamps and without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from slipstream.core.sampling import Sampling
from slipstream.engines.options import GenerationOptions, Speculation
from slipstream.models.speech.audio import RATE, Audio

ROWS, SPEECH_ROWS = 64, 8  # that decode together at most
PLAIN = Speculation(off=True)
# by the policy, which begins without drafts, and at usual depths; a smaller Whisper is right for longer than a head
DRAFTING, SPEECH_DRAFTING = (
    (Speculation(), *(Speculation(depth=depth) for depth in depths)) for depths in ((1, 3, 5), (2, 3, 5, 8))
)
TEMPERATURES = 0.0, 1.0  # greedy rows and sampled ones have different cycles
PROMPT = 4  # tokens


class Round(NamedTuple):
    """So many requests at once, all with this temperature and speculation."""

    rows: int
    temperature: float
    speculation: Speculation

    @property
    def tokens(self) -> int:
        """Enough for a first cycle without a draft, and for two that draft as far as they may."""
        return 1 + 2 * ((self.speculation.depth or 0) + 1)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature)

    @property
    def options(self) -> GenerationOptions:
        return GenerationOptions(self.tokens, ignore_eos=True, speculation=self.speculation)


def rounds(rows: int, drafts: bool, speech: bool = False) -> Iterator[Round]:
    """The rounds of an engine with so many rows. `drafts`: whether it has a drafter."""
    most, temperatures, drafting = (
        (SPEECH_ROWS, TEMPERATURES[:1], SPEECH_DRAFTING) if speech else (ROWS, TEMPERATURES, DRAFTING)
    )
    count = 1 << (max(1, min(rows, most)).bit_length() - 1)
    while count:
        for temperature in temperatures:
            for speculation in (PLAIN, *drafting) if drafts else (PLAIN,):
                yield Round(count, temperature, speculation)
        count //= 2


def recordings(rows: int, languages: Collection[str]) -> list[list[Audio]]:
    """A second of silence for each row, with timestamps and without."""
    language = next(iter(languages), None)
    silence = np.zeros(RATE, np.float32)
    return [[Audio(silence, language, timestamps=times)] * rows for times in (True, False)]


def prompts(rows: int, vocab: int) -> list[list[int]]:
    """Short prompts of different tokens."""
    return [[(PROMPT * row + n) % vocab for n in range(PROMPT)] for row in range(rows)]
