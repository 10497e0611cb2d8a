"""Requests of the engine itself, before anybody else's: on a GPU, the usual cycles are captured when they have ended.

A size of cycle is compiled and captured when it is first met, which takes as long as hundreds of cycles. Caches grow
with the rows, and captured cycles do not outlive that. So many rows come first. Kernels are compiled for few and for
many tokens, and for long texts: one and most rows draft further, and one row has prompts of several lengths. Cycles
for texts above 1,024 tokens read more of the cache; they are captured with short texts. Passes over prompts are
captured when their size is met for the second time, so each size has two rounds.
Speech has fewer rows, greedy ones, with timestamps and without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from slipstream.core.sampling import Sampling
from slipstream.engines.options import GenerationOptions, Speculation
from slipstream.models.speech.audio import RATE, Audio

ROWS, SPEECH_ROWS = 256, 8  # that decode together at most
PLAIN = Speculation(off=True)
# by the policy, which begins without drafts, and at usual depths; a smaller Whisper is right for longer than a head
DRAFTING, SPEECH_DRAFTING = (
    (Speculation(), *(Speculation(depth=depth) for depth in depths)) for depths in ((1, 2, 3, 5), (2, 3, 5, 8))
)
FURTHER = (Speculation(depth=8),)  # that a policy may choose, too
LONG_DRAFTING = Speculation(), Speculation(depth=1), Speculation(depth=3)  # the same for long texts
SAMPLINGS = Sampling(0.0), Sampling(1.0), Sampling(1.0, seed=0)  # greedy, sampled and seeded rows have other cycles
PROMPT = 4  # tokens
LONG = 1100  # tokens of a long text
LENGTHS = 24, 100, 1700  # tokens of prompts whose passes run by different kernels
USUAL_PROMPT = 256  # tokens of each prompt of a pass over several


class Round(NamedTuple):
    """So many requests at once, all with these sampling parameters, speculation and length of the prompt. Their cycles
    are those of texts of at least `text` tokens."""

    rows: int
    sampling: Sampling
    speculation: Speculation
    prompt: int = PROMPT
    text: int = 0

    @property
    def tokens(self) -> int:
        """Enough for a first cycle without a draft, and for two that draft as far as they may."""
        return 1 + 2 * ((self.speculation.depth or 0) + 1)

    @property
    def options(self) -> GenerationOptions:
        return GenerationOptions(self.tokens, ignore_eos=True, speculation=self.speculation)


def rounds(rows: int, drafts: bool, context: int, sizes: Sequence[int] = ()) -> Iterator[Round]:
    """The rounds of an engine with so many rows. `drafts`: whether it has a drafter. `context`: of its model. `sizes`:
    tokens of captured passes over prompts."""
    most = 1 << (max(1, min(rows, ROWS)).bit_length() - 1)
    usual = (PLAIN, *DRAFTING) if drafts else (PLAIN,)
    for count in _halves(most):
        further = FURTHER if drafts and count in (1, most) else ()
        yield from (Round(count, sampling, each) for sampling in SAMPLINGS for each in (*usual, *further))
    yield from _long_texts(most, drafts, context)
    texts = (Round(1, SAMPLINGS[0], speculation, length) for length in LENGTHS for speculation in usual)
    yield from (each for each in (*texts, *_reads(most, drafts, sizes)) if each.prompt + each.tokens <= context)


def _long_texts(rows: int, drafts: bool, context: int) -> Iterator[Round]:
    """Rounds of every second halving of so many rows. Cycles for more rows serve those between."""
    ways = (PLAIN, *LONG_DRAFTING) if drafts else (PLAIN,)
    for count in list(_halves(rows))[::2] if context >= 2 * LONG else ():
        yield from (Round(count, sampling, each, text=LONG) for sampling in SAMPLINGS for each in ways)


def _reads(rows: int, drafts: bool, sizes: Sequence[int]) -> Iterator[Round]:
    """Two rounds for each of these sizes, of up to so many rows. Target and drafter read somewhat less than `size`."""
    for size in sizes:
        count = min(rows, -(-size // USUAL_PROMPT))
        speculation = Speculation(depth=3) if drafts else PLAIN
        yield from [Round(count, SAMPLINGS[0], speculation, size // count - 1)] * 2


def speech_rounds(rows: int, drafts: bool) -> Iterator[Round]:
    """The rounds of an engine that transcribes."""
    most = 1 << (max(1, min(rows, SPEECH_ROWS)).bit_length() - 1)
    for count in _halves(most):
        yield from (Round(count, SAMPLINGS[0], each) for each in ((PLAIN, *SPEECH_DRAFTING) if drafts else (PLAIN,)))


def _halves(count: int) -> Iterator[int]:
    while count:
        yield count
        count //= 2


def recordings(rows: int, languages: Collection[str]) -> list[list[Audio]]:
    """A second of silence for each row, with timestamps and without."""
    language = next(iter(languages), None)
    silence = np.zeros(RATE, np.float32)
    return [[Audio(silence, language, timestamps=times)] * rows for times in (True, False)]


def prompts(rows: int, vocab: int, length: int = PROMPT, number: int = 0) -> list[list[int]]:
    """Prompts of different tokens. Those of another number have no common prefix with them, which would be stored."""
    return [[(length * row + n * (number + 1)) % vocab for n in range(length)] for row in range(rows)]
