"""What captured cycles are expected to take: as measured, or by their time on the device and what the host adds."""

from __future__ import annotations

import json
import random

import pytest

from slipstream.core.device import DraftSize, GraphKey
from slipstream.core.verify.match import Greedy
from slipstream.core.verify.token import Token
from slipstream.plan.policy.config import CostConfig
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


def test_ten_slow_cycles_in_a_row_are_no_price():
    costs = known()
    for seconds in [2.0] * 20 + [7.0] * 10:
        costs.learn(key(5), 8, seconds)
    assert costs.seconds(key(5), 8) == 2.0
    for _ in range(25):
        costs.learn(key(5), 8, 3.0)
    assert costs.seconds(key(5), 8) == 3.0, "a lasting change is one"


def test_a_price_of_long_ago_is_doubted_if_the_host_added_more_than_it_most_often_does():
    costs = known()
    for _ in range(8):
        costs.learn(key(5), 8, 9.0)  # while the host did something else
        costs.learn(key(1), 8, 1.3)
    for _ in range(CostConfig().graph_memory - 8):
        costs.learn(key(0), 8, 1.1)
    assert costs.seconds(key(5), 8) == 9.0
    for _ in range(8):
        costs.learn(key(0), 8, 1.1)
    assert costs.seconds(key(5), 8) == pytest.approx(2.0 + 0.1)
    assert costs.seconds(key(1), 8) == pytest.approx(1.3), "nothing is wrong with it"
    costs.learn(key(5), 8, 9.0)
    assert costs.seconds(key(5), 8) == 9.0, "it is still so"


def test_cycles_that_waited_for_the_host_count_only_until_one_overlapped():
    costs = GraphCosts()
    costs.learn(key(0), 8, 0.004, overlapped=False)
    assert costs.seconds(key(0), 8) == pytest.approx(0.004), "an engine whose cycles never overlap knows nothing else"
    costs.learn(key(0), 8, 0.002)
    for _ in range(30):
        costs.learn(key(0), 8, 0.004, overlapped=False)
    again = GraphCosts.from_json(json.loads(json.dumps(costs.to_json())))
    again.learn(key(0), 8, 0.004, overlapped=False)
    assert costs.seconds(key(0), 8) == again.seconds(key(0), 8) == pytest.approx(0.002)
    again.learn(key(0), 8, 0.002)
    assert again.seconds(key(0), 8) == pytest.approx(0.002), "what was measured before is not forgotten"


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


SLOPE = 2e-8  # seconds that a cached token adds


def batch(costs: GraphCosts, rows: int, base: float, depth: int = 0, cycles: int = 128) -> None:
    """Cycles of rows that begin with 50 tokens and get one token each."""
    for n in range(cycles):
        cached = rows * (50 + n)
        costs.learn(key(depth, rows), rows, base + SLOPE * cached, cached)


def test_a_price_is_that_of_the_texts_present_length_whenever_the_cycle_ran():
    costs = GraphCosts()
    batch(costs, 64, 7e-4)
    first, last = 64 * 50, 64 * 178
    assert costs.seconds(key(0, 64), 64, last) == pytest.approx(7e-4 + SLOPE * last, rel=0.02)
    assert costs.seconds(key(0, 64), 64, first) == pytest.approx(7e-4 + SLOPE * first, rel=0.03), "of the next batch"


@pytest.mark.parametrize("seed", range(8))
def test_texts_of_single_rows_tell_little_about_those_of_many(seed):
    costs, generator = GraphCosts(), random.Random(seed)
    for n in range(128):
        costs.learn(key(0, 1), 1, 6e-4 * (1 + generator.gauss(0, 0.03)), 50 + n)
    costs.learn(key(0, 64), 64, 8e-4, 64 * 50)
    assert costs.seconds(key(0, 64), 64, 64 * 178) == pytest.approx(8e-4, rel=0.1)


def test_a_pause_of_the_host_is_not_the_texts_doing():
    costs = GraphCosts()
    batch(costs, 64, 7e-4)
    before = costs.seconds(key(0, 64), 64, 64 * 50)
    costs.learn(key(0, 64), 64, 0.07, 64 * 178)
    batch(costs, 64, 7e-4, cycles=16)
    assert costs.seconds(key(0, 64), 64, 64 * 50) == pytest.approx(before, rel=0.1)


def test_what_drafts_add_is_known_from_cycles_for_other_texts_and_rules():
    costs = known()
    longer = key(5)._replace(parts=16)
    assert costs.drafting(longer) == pytest.approx(1.0)
    assert costs.drafting(longer._replace(rule=Token.device_rule)) == pytest.approx(1.0)
    assert costs.drafting(key(3)) is None, "never timed"
    assert costs.drafting(key(5, 64)) is None, "nor for so many rows"
    costs.captured(longer._replace(size=DraftSize(0)), 4.0)
    costs.captured(longer, 4.5)
    assert costs.drafting(longer) == pytest.approx(0.5), "the nearest tells"
