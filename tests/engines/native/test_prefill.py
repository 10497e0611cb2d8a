"""How much of whose prompt is read in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from slipstream.core.types import Request, Row
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.prompts.reader import PromptReader


class Reader:
    """Reads ahead what it is told to, and writes it down."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def prefill(self, rows: Sequence[Row], limit: int) -> list[int]:
        self.read += [limit] * bool(limit)
        return [limit for _ in rows]


def jobs(*lengths: int) -> list[Job]:
    return [Job(Request([1] * length), DecodingPlan("none", "greedy", 0)) for length in lengths]


def prompts(limit: int) -> tuple[PromptReader, Reader]:
    reader = Reader()
    return PromptReader(cast(Any, reader), limit, lambda _: None), reader


def test_what_fits_into_a_step_is_ready_and_rides_along():
    reading, reader = prompts(100)
    some = jobs(40, 60, 10)
    assert reading.read(some) == some[:2]
    assert reader.read == []


def test_a_prompt_is_cut_where_a_good_piece_of_the_step_is_left():
    reading, reader = prompts(100)
    first, second = jobs(70, 90)
    assert reading.read([first, second]) == [first]
    assert (reader.read, second.unread) == ([30], 60)


def test_and_waits_where_the_piece_would_be_too_small():
    reading, reader = prompts(100)
    first, second, third = jobs(80, 90, 15)
    assert reading.read([first, second, third]) == [first, third], "a small one passes by"
    assert (reader.read, second.unread) == ([], 90)
    first.stats.cycles = third.stats.cycles = 1
    assert reading.read([first, second, third]) == [first, second, third], "next time it is the first"


def test_a_long_prompt_is_read_step_by_step():
    reading, reader = prompts(100)
    (job,) = jobs(250)
    assert [len(reading.read([job])) for _ in range(3)] == [0, 0, 1]
    assert (reader.read, job.unread) == ([100, 100], 50)


def test_who_is_done_is_not_ready():
    reading, _ = prompts(100)
    one, other = jobs(5, 5)
    one.stats.cycles = other.stats.cycles = 1
    one.end("cancelled")
    assert reading.read([one, other]) == [other]
