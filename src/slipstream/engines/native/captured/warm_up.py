"""Requests of the engine itself, before anybody else's: on a GPU, the usual cycles are captured when they have ended.

A size of cycle is compiled and captured when it is first met, which takes as long as hundreds of cycles. Caches grow
with the rows, and captured cycles do not outlive that. So many rows come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slipstream.core.sampling import Sampling
from slipstream.engines.options import GenerationOptions, Speculation

ROWS = 64  # that decode together at most
DEPTHS = 0, 1, 3, 5  # drafted tokens, as far as there is a drafter
TEMPERATURES = 0.0, 1.0  # greedy rows and sampled ones have different cycles
PROMPT = 4  # tokens


class Round(NamedTuple):
    """So many requests at once, each with this temperature and depth."""

    rows: int
    temperature: float
    depth: int

    @property
    def tokens(self) -> int:
        """Enough for a first cycle without a draft, and for two that draft as far as they may."""
        return 1 + 2 * (self.depth + 1)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature)

    @property
    def options(self) -> GenerationOptions:
        how = Speculation(depth=self.depth) if self.depth else Speculation(off=True)
        return GenerationOptions(self.tokens, ignore_eos=True, speculation=how)


def rounds(rows: int, drafts: bool) -> Iterator[Round]:
    """The rounds of an engine with so many rows. `drafts`: whether it has a drafter."""
    count = 1 << (max(1, min(rows, ROWS)).bit_length() - 1)
    while count:
        for temperature in TEMPERATURES:
            for depth in DEPTHS if drafts else DEPTHS[:1]:
                yield Round(count, temperature, depth)
        count //= 2


def prompts(rows: int, vocab: int) -> list[list[int]]:
    """Short prompts of different tokens."""
    return [[(PROMPT * row + n) % vocab for n in range(PROMPT)] for row in range(rows)]
