"""What captured cycles are expected to take: as measured, or by their time on the device and what the host adds."""

from __future__ import annotations

import pytest

from slipstream.core.device import DraftSize, GraphKey
from slipstream.core.verify.match import Greedy
from slipstream.plan.policy.graph_costs import GraphCosts


def key(depth: int, rows: int = 8) -> GraphKey:
    return GraphKey(rows, DraftSize(depth), Greedy.device_rule, 8, False, None)


def known() -> GraphCosts:
    costs = GraphCosts()
    for depth, seconds in ((0, 1.0), (1, 1.2), (5, 2.0)):
        costs.captured(key(depth), seconds)
    return costs


def test_a_cycle_that_ran_takes_what_it_took():
    costs = known()
    for seconds in (2.5, 2.9, 2.6):
        costs.learn(key(5), 8, seconds)
    assert costs.seconds(key(5), 7) == 2.6, "rows are rounded up"


def test_one_that_did_not_run_takes_the_least_that_the_host_adds_to_others():
    costs = known()
    assert costs.seconds(key(1), 8) == 1.2, "nothing is known of the host"
    costs.learn(key(5), 8, 2.9)
    assert costs.seconds(key(1), 8) == pytest.approx(1.2 + 0.9)
    costs.learn(key(0), 8, 1.1)
    assert costs.seconds(key(1), 8) == pytest.approx(1.2 + 0.1), "a cycle that emits less costs the host less"
    costs.learn(key(0), 8, 0.9)
    costs.learn(key(0), 8, 0.9)
    assert costs.seconds(key(1), 8) == pytest.approx(1.2), "the host adds nothing, and never takes away"


def test_other_numbers_of_rows_tell_only_where_there_is_nothing_else():
    costs = known()
    costs.captured(key(1, 64), 3.0)
    costs.learn(key(0), 8, 1.1)
    assert costs.seconds(key(1, 64), 64) == pytest.approx(3.1)
    costs.captured(key(0, 64), 2.0)
    costs.learn(key(0, 64), 64, 2.7)
    assert costs.seconds(key(1, 64), 64) == pytest.approx(3.7)
