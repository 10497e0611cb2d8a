"""The cost model can be written as JSON and read again, with what captured cycles cost."""

from __future__ import annotations

import json

import pytest

from slipstream.core.device import DeviceRule, DraftSize, GraphKey
from slipstream.core.verify.block import Block
from slipstream.core.verify.match import Greedy
from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.prices import CostCurve, ReadingCost, Slowdown

KEY = GraphKey(8, DraftSize(3), Greedy.device_rule, 2)


def measured() -> CostModel:
    costs = CostModel()
    for seconds in (0.01, 0.012, 0.011):
        costs.learn(seconds, 4)
    costs.learn(0.02, 12, drafted=8)
    costs.draft(0.5, 1)
    costs.draft(0.002, 2)
    costs.draft(0.009, 3, branched=True)
    costs.draft(0.102, 2, late=True, missed=100)
    graphs = costs.graph_costs("Eagle")
    graphs.captured(KEY, 0.003)
    graphs.learn(KEY, 7, 0.004)
    for _ in range(3):
        graphs.learn_reading(KEY, 7, 1000, 0.104)
    return costs


def test_what_was_measured_survives_json():
    costs = measured()
    again = CostModel.from_json(json.loads(json.dumps(costs.to_json())))
    assert again.to_json() == costs.to_json()
    for tokens in (1, 4, 9):
        assert again.plain(tokens) == costs.plain(tokens)
        assert [again.more(tokens)(n) for n in (1, 5, 20)] == [costs.more(tokens)(n) for n in (1, 5, 20)]
    assert again.sure(4)
    assert again.priced
    assert (again.chain(2), again.tree(3)) == (costs.chain(2), costs.tree(3)) == (0.002, 0.009)
    assert again.reading(50) == costs.reading(50) == pytest.approx(0.05)
    graphs = again.graph_costs("Eagle")
    assert graphs.device(KEY) == 0.003
    assert graphs.seconds(KEY, 8) == 0.004
    assert graphs.reading(1024) == pytest.approx(0.1)


def test_a_key_read_again_finds_the_same_graph():
    for rule in (Greedy.device_rule, Block.device_rule):
        key = GraphKey(4, DraftSize(3, 6, 8), rule, 1, True)
        again = GraphKey.from_json(json.loads(json.dumps(key.to_json())))
        assert again == key
        assert again.rule is rule
    other = DeviceRule.from_json(["token", True, True, False, True])
    assert DeviceRule.from_json(other.to_json()) is other


def test_an_empty_model_is_read_again_as_one():
    again = CostModel.from_json(json.loads(json.dumps(CostModel().to_json())))
    assert again.plain(3) == 1.0
    assert not again.priced
    assert not CostCurve.from_json({})


def test_a_slowdown_is_neither_one_slow_pass_nor_noise():
    slowdown = Slowdown()
    assert [slowdown.update(seconds, 1.0) for seconds in (1.1, 3.0, 0.9, 1.05)] == [1.0] * 4
    factors = [slowdown.update(2.0, 1.0) for _ in range(3)]
    assert factors[-1] == pytest.approx(2.0, rel=0.01)
    assert slowdown.update(9.0, None) == factors[-1], "a pass of unknown cost tells nothing of the machine"


def test_requests_that_are_sampled_do_not_make_drafts_of_greedy_ones_look_cheap():
    """A pass and its verdict take 0.15 of a pass longer at a temperature: compared with such a plain pass, a drafted
    token of a greedy request would look nearly free."""
    slowdown = Slowdown()
    for _ in range(3):
        slowdown.update(1.15, 1.0)
    assert slowdown.update(1.15, 1.0) == pytest.approx(1.15, rel=0.01)


def test_only_a_measured_pass_is_known():
    costs = measured()
    assert costs.known(4) == costs.plain(4) == 0.011
    assert costs.known(12, 8) == pytest.approx(0.02)
    assert costs.known(3) is costs.known(11, 7) is costs.known(11, 8) is None


def test_fewer_items_cost_no_more_than_more_of_them():
    curve = CostCurve((1, 0.009), (2, 0.003), (4, 0.005))
    assert [curve(n) for n in (0, 1, 2, 3, 4)] == pytest.approx([0.0, 0.003, 0.003, 0.004, 0.005])
    for _ in range(3):
        curve.add(2, 0.02)
    assert curve(1) == curve(2) == curve(4) == 0.005


def test_a_drafted_pass_in_a_fast_moment_does_not_lower_a_plain_cost_that_is_sure():
    costs = CostModel()
    for seconds in (0.01, 0.004, 0.011, 0.012):
        costs.learn(seconds, 1 if seconds > 0.004 else 2, drafted=int(seconds == 0.004))
    before = costs.plain(1)
    for _ in range(9):
        costs.learn(0.005, 2, drafted=1)
    assert costs.plain(1) == before
    costs = CostModel()
    costs.learn(0.03, 1)
    costs.learn(0.012, 2, drafted=1)
    assert costs.plain(1) == 0.012, "the first plain pass was a slow one"


def test_one_slow_draft_at_the_start_does_not_set_the_price():
    costs = CostModel()
    costs.draft(0.003, 1)
    costs.draft(0.009, 1)
    assert costs.chain(1) == 0.003, "the first draft of all took no longer"
    costs = CostModel()
    for seconds in (0.02, 0.009):
        costs.draft(seconds, 1)
    costs.draft(0.003, 1, late=True)
    assert costs.chain(1) == 0.003, "nor did one after a pause"
    costs.draft(0.008, 1, late=True)
    assert costs.chain(1) == 0.003


def test_more_to_read_than_ever_is_not_taken_to_cost_in_proportion():
    reading = ReadingCost()
    for tokens in (64, 512):
        for _ in range(3):
            reading.add(tokens, 0.001 + 5e-7 * tokens)
    assert reading(8192) == pytest.approx(0.001 + 5e-7 * 8192)
    assert reading(32) < reading(64)
