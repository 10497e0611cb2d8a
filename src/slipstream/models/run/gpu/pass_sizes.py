"""The sizes that passes on a GPU have room for. Few sizes mean few graphs."""

from __future__ import annotations

from functools import cache

from slipstream.core.device import next_power_of_two
from slipstream.kernels.gpu.attention import PART

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128)  # tokens of captured passes
LARGER = (192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)  # the same for small models: prompts
PROMPTS = 64  # prompts that a pass of a size in LARGER has room for, at least
EVEN = 16  # passes that are not captured have room for a multiple of this many tokens
WORK = 1.2e12  # weights times tokens above which a pass runs longer than the host takes to launch it
PROMPT, LONGEST_PROMPT = 2048, 8192  # tokens of a pass over prompts, at least and at most
FEW_CHUNKS = 16  # of a pass that has room for a chunk per token
LEAST = 8  # parts of the cache that a captured pass can read, at least


def parts_of(used: int) -> int:
    """How many parts of the cache a pass may read. An empty part costs next to nothing."""
    return _parts(used, LEAST)


@cache
def _parts(used: int, least: int) -> int:
    return next_power_of_two(max(least, -(-used // PART)))


def chunks_of(count: int, size: int, chunk: int) -> int:
    """How many chunks of up to `chunk` tokens a pass has room for, at least one: `count` of them, in a pass over
    prompts as many as `PROMPTS` prompts may have. Empty chunks take little time, and few sizes mean few graphs."""
    if is_large(size):
        return min(size, next_power_of_two(max(count, size // chunk + PROMPTS)))
    return 1 if count <= 1 else size if size <= FEW_CHUNKS else min(size, next_power_of_two(count))


def is_large(size: int) -> bool:
    """Whether passes of a size are captured for small models only."""
    return size > SIZES[-1]


def size_of(tokens: int, largest: int = SIZES[-1]) -> int:
    """How many tokens a pass has room for: a size that is captured, or `tokens` rounded up to a multiple of `EVEN`.

    Tables of such sizes are aligned; for others the kernels would be compiled once more.
    """
    return next((size for size in (*SIZES, *LARGER) if tokens <= size <= largest), -(-tokens // EVEN) * EVEN)


def largest_of(weights: int) -> int:
    """The most tokens of a pass that is worth a graph, by the number of weights that each token passes."""
    return max(SIZES[-1], min(LARGER[-1], int(WORK / weights)))


def prompt_tokens_of(weights: int) -> int:
    """How many tokens of prompts are worth reading in one pass, by the number of weights that each token passes.

    Fewer take longer to launch than to run. More make the rows that decode meanwhile wait.
    """
    return max(PROMPT, min(LONGEST_PROMPT, int(WORK / weights)))


def large_sizes(largest: int) -> list[int]:
    """The sizes of captured passes over prompts, of a model whose largest captured pass has so many tokens."""
    return [size for size in LARGER if size <= largest]
