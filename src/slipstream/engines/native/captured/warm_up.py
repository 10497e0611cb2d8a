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
PLAIN = Speculation(off=True)
DRAFTING = (
    Speculation(),
    *(Speculation(depth=depth) for depth in (1, 3, 5)),
)  # by the policy, which begins without drafts
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


def rounds(rows: int, drafts: bool) -> Iterator[Round]:
    """The rounds of an engine with so many rows. `drafts`: whether it has a drafter."""
    count = 1 << (max(1, min(rows, ROWS)).bit_length() - 1)
    while count:
        for temperature in TEMPERATURES:
            yield Round(count, temperature, PLAIN)
            for speculation in DRAFTING if drafts else ():
                yield Round(count, temperature, speculation)
        count //= 2


def prompts(rows: int, vocab: int) -> list[list[int]]:
    """Short prompts of different tokens."""
    return [[(PROMPT * row + n) % vocab for n in range(PROMPT)] for row in range(rows)]
