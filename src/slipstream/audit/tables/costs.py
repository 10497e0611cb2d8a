"""Expected times of the checks on tables, so that an audit can announce its duration.

The unit is the time of 1,000 sampled continuations, which `unit_seconds` measures. The figures were measured on two
cores of an Intel Xeon. They need to be right only within a factor of two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.core.verify.token import Token

REFERENCE = 4**6  # sequences of two cycles of depth 2 on four tokens


@dataclass(frozen=True)
class Costs:
    """Expected times, in units."""

    exact: float  # an enumeration of two cycles
    replay: float

    @staticmethod
    def of(pair: Pair, depth: int) -> Costs:
        """The number of sequences grows exponentially with the depth."""
        sequences: int = pair.target.vocab ** (2 * (depth + 1))
        return Costs(exact=2.5 * sequences / REFERENCE, replay=4)

    def sampled(self, rows: int) -> float:
        return rows / 1000


def unit_seconds(pair: Pair, rows: int = 400, repeats: int = 3) -> float:
    """Seconds for 1,000 sampled continuations on this machine. The shortest of some runs, so that a busy moment does
    not count."""
    check_sampled("warm-up", Subject(Token), pair, rows)
    return min(_seconds(pair, rows) for _ in range(repeats)) * 1000 / rows


def _seconds(pair: Pair, rows: int) -> float:
    began = time.perf_counter()
    check_sampled("timing", Subject(Token), pair, rows)
    return time.perf_counter() - began


@contextmanager
def one_thread() -> Iterator[None]:
    """In here torch uses one thread. The tensors of tables are so small that several threads only wait for each other,
    for minutes where another process needs a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
