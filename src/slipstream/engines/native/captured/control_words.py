"""What the host tells a captured cycle of its rows: integers (`CycleControl`) and numbers (`SamplingInputs`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from slipstream.core.device import DraftSize
from slipstream.core.noise import keys
from slipstream.core.types import Budget, Row

FILL = (0, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0)  # of lines without a row


def control_words(
    rows: Sequence[Row],
    depths: Sequence[int],
    goals: Sequence[Budget],
    goal: Sequence[int],
    indices: tuple[Sequence[int], Sequence[int]],
    context: int,
    size: DraftSize,
    lines: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """The fields of `CycleControl` and of `SamplingInputs`, filled up to a graph's lines.

    `depths` are of the coming cycle, `goals` and their depths `goal` of the cycles after it, which have the same
    shapes. `indices`: of each row in the caches of the target and of the drafter."""
    words: list[Sequence[int]] = [
        [_stream(row.seed, row.sample) for row in rows],
        [row.length for row in rows],
        depths,
        *indices,
        [row.tokens[-1] for row in rows],
        [min(size.nodes, row.shape.nodes if row.shape else row.depth) for row in goals],
        [min(size.width, row.shape.width if row.shape else 1) for row in goals],
        [row.tokens[-2] for row in rows],
        [row.room(context) for row in rows],
        goal,
    ]
    sampling = [row.request.sampling for row in rows]
    numbers = [
        [own.temperature for own in sampling],
        [row.stop_below for row in goals],
        [float(own.top_k) for own in sampling],
        [own.top_p for own in sampling],
        [own.min_p for own in sampling],
    ]
    missing = lines - len(rows)
    padded = [[*line, *[value] * missing] for line, value in zip(words, FILL, strict=True)]
    return padded, [line + line[:1] * missing for line in numbers]


@lru_cache(maxsize=1 << 12)
def _stream(seed: int, sample: int) -> int:
    """The key of a row's noise."""
    return int(keys([seed], [sample]))
