"""What new rows are expected to be like: steady where many rows teach it, and quick where the text changes."""

from __future__ import annotations

import random
import statistics

import pytest

from slipstream.core.types import Request, Row
from slipstream.plan.policy.acceptance import AcceptanceEstimator
from slipstream.plan.policy.config import AcceptanceConfig, AdaptiveConfig
from slipstream.plan.policy.size_choice import SizeChoice, _in_turn


class Batch:
    """Cycles of a batch whose rows draft three tokens, at these rates. So many prompts take turns. Rows of the same one
    have the same tokens accepted."""

    def __init__(self, rates: list[float], prompts: int = 256) -> None:
        self.estimator, self._prompts = AcceptanceEstimator(AcceptanceConfig()), prompts
        self._choice = SizeChoice(self.estimator, AdaptiveConfig())
        self._rows = [(Row(Request([1])), rate) for rate in rates]
        self.rows = [row for row, _ in self._rows]

    def run(self, cycles: int, change: float = 0.0) -> list[float]:
        """What new rows are expected to be like after each cycle."""
        expected = []
        for cycle in range(cycles):
            observed = self._choice.observed(len(self._rows))
            self.estimator.together(len(self._rows), len(observed))
            for r in observed:
                (row, rate), luck = self._rows[r], random.Random(f"{cycle} {r % self._prompts}")
                judged = [(0, 1)]
                while judged[-1][0] == 0 and len(judged) <= 3:
                    judged.append((0 if luck.random() < rate + change else -1, 1))
                self.estimator.learn(row, len(judged) - 1, judged[1:])
            expected.append(self.estimator.shared().rate)
        return expected


@pytest.mark.parametrize("count", [64, 256])
def test_it_does_not_hang_on_the_last_cycles_of_many_rows(count):
    expected = Batch([0.55] * count).run(200)[50:]
    assert statistics.stdev(expected) < 0.03
    assert min(expected) > 0.46


@pytest.mark.parametrize("count", [64, 256])
def test_nor_on_one_of_a_few_prompts_that_repeat(count):
    """Eight prompts in turn: of rows at a regular distance, all would have the same one."""
    expected = Batch([0.4 + 0.04 * (n % 8) for n in range(count)], prompts=8).run(200)[50:]
    assert statistics.stdev(expected) < 0.03


@pytest.mark.parametrize("count", [1, 8, 64, 256])
def test_another_text_is_noticed_within_a_few_cycles(count):
    batch = Batch([0.7] * count)
    batch.run(100)
    assert batch.run(100 if count == 1 else 16, change=-0.6)[-1] < 0.3


@pytest.mark.parametrize("count", [8, 64])
def test_rows_that_end_tell_what_a_whole_text_is_like(count):
    batch = Batch([0.8] * count)
    batch.run(20)
    at_the_end = batch.run(20, change=-0.6)[-1]
    for row in batch.rows:
        batch.estimator.close(row)
    assert at_the_end < 0.45
    assert batch.estimator.shared().text_rate == pytest.approx(0.6, abs=0.08), "more slots of the first half are judged"


@pytest.mark.parametrize("count", [3, 8, 9, 63, 64, 100, 256])
def test_all_rows_have_their_turn(count):
    turns = [list(_in_turn(count, 8, turn)) for turn in range(count)]
    assert all(len({*turn}) == len(turn) == min(8, count) for turn in turns)
    assert {sum(turn.count(row) for turn in turns) for row in range(count)} == {min(8, count)}
