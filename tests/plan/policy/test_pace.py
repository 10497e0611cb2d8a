"""When rows will be done that move together: on the average, and the last one."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.core.types import Request, Row
from slipstream.plan.policy.config import PaceConfig
from slipstream.plan.policy.pace import Pace, _highest

SPREAD = PaceConfig().spread


def rows(count: int) -> list[Row]:
    return [Row(Request([1, 2])) for _ in range(count)]


def seconds(pace: Pace, cycle: float, more: list[float], left: list[float]) -> float:
    """The mean of the average row and the last one, of one way whose speed changes as much as the rows' acceptance."""
    cycles = np.array([cycle])
    average, last = pace.seconds(cycles, cycles, np.array([more]), np.array(left), np.array([float(any(more))]))
    return float(average[0] + last[0]) / 2


def test_plain_rows_are_done_when_they_have_said_what_is_left():
    assert seconds(Pace(), 2.0, [0, 0], [10, 30]) == 2.0 * (20 + 30) / 2
    average, last = Pace().seconds(
        np.full(1, 2.0), np.full(1, 1.0), np.zeros((1, 2)), np.array([10.0, 30.0]), np.zeros(1)
    )
    assert (average, last) == (40.0, 50.0), "the last cycles cost less"
    assert seconds(Pace(), 2.0, [0], [10]) == 20.0


def test_ways_are_looked_at_side_by_side():
    left, more = np.array([40.0, 70.0, 90.0]), np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 0.5]])
    average, last = Pace().seconds(np.array([1.0, 1.5]), np.array([1.0, 1.5]), more, left, np.array([0.0, 1.0]))
    alone = [seconds(Pace(), cycle, list(line), list(left)) for cycle, line in zip((1.0, 1.5), more, strict=True)]
    assert ((average + last) / 2).tolist() == alone


def test_drafts_that_move_one_row_only_are_worth_half_of_what_they_seem():
    alike, apart = (seconds(Pace(), 1.0, more, [100.0] * 2) for more in ([1.0, 1.0], [3.0, 0.0]))
    assert alike < 60 < 75 < apart <= 100


def test_the_more_rows_the_later_the_last_one():
    times = [seconds(Pace(), 1.0, [2.0] * count, [99.0] * count) for count in (1, 8, 64)]
    assert times[0] == pytest.approx(33.0)
    assert times[0] < times[1] < times[2] < 33 * (1 + SPREAD * 2.5)
    assert seconds(Pace(), 1.0, [2.0] * 64, [99.0, *[9.0] * 63]) < 20, "who has little to say is not the last"


def test_the_highest_of_several_is_where_statistics_say():
    drawn = np.random.default_rng(0).standard_normal((20000, 8)).max(1).mean()
    assert _highest(1) == 0
    assert _highest(8) == pytest.approx(drawn, abs=0.03)


def test_how_far_rows_fall_apart_is_learnt_from_those_that_leave():
    even, uneven = Pace(), Pace()
    for pace, counts in ((even, [3, 3, 3, 3.01]), (uneven, [1, 3, 4, 4])):
        for _ in range(20):
            some = rows(4)
            for _ in range(30):
                pace.moved(some, counts)
            for row in some:
                pace.close(row)
    asked = 1.0, [2.0] * 8, [99.0] * 8
    assert seconds(even, *asked) < seconds(Pace(), *asked) < seconds(uneven, *asked)


def test_long_drafts_drive_rows_further_apart_than_short_ones():
    average, last = Pace().seconds(np.ones(2), np.ones(2), np.full((2, 8), 2.0), np.full(8, 99.0), np.array([0.5, 2.0]))
    assert average[0] == average[1]
    assert last[0] < last[1]
    paces = Pace(), Pace()
    for pace, sensitivity in zip(
        paces, (0.5, 2.0), strict=True
    ):  # the same differences under short and under long drafts
        for _ in range(20):
            some = rows(4)
            for _ in range(30):
                pace.moved(some, [2, 3, 3, 4], sensitivity)
            for row in some:
                pace.close(row)
    asked = 1.0, [2.0] * 8, [99.0] * 8
    assert seconds(paces[1], *asked) < seconds(paces[0], *asked), "these rows differ more"


def test_a_row_alone_or_a_short_one_teaches_nothing():
    pace, (alone, short, other) = Pace(), rows(3)
    for _ in range(40):
        pace.moved([alone], [4])
    pace.moved([short, other], [1, 5])
    for row in (alone, short):
        pace.close(row)
    assert pace._variance == SPREAD**2
    for _ in range(40):
        pace.moved([other, alone], [1, 5])
    pace.close(other)
    assert pace._variance > SPREAD**2, "a long one among others does"
