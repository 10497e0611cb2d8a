"""The prediction is followed, found again after every kind of change, and never changes the law of the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import check_cycles
from slipstream.core.device import DraftSize
from slipstream.core.rules import rules
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.core.verify.token import Token
from slipstream.drafters.prediction import Follower, PredictedRow, Prediction
from slipstream.plan.policy.acceptance import AcceptanceEstimate
from slipstream.plan.policy.config import AcceptanceConfig
from slipstream.plan.policy.policies import Fixed

TEXT = list(range(10, 40))


def after(output: list[int], depth: int = 4, prediction: list[int] = TEXT) -> list[int]:
    follower = Follower(prediction)
    for token in output:
        follower.read(token)
    return follower.draft(depth)


def test_it_is_followed_from_its_first_token():
    assert after([]) == [10, 11, 12, 13]
    assert after(TEXT[:5]) == [15, 16, 17, 18]
    assert after(TEXT) == []


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([10, 11, 12, 99], [14, 15, 16]),  # one token replaced: a short draft, since nothing confirms it
        ([10, 11, 12, 99, 14], [15, 16, 17, 18]),
        ([10, 11, 12, 99, 13], [14, 15, 16, 17]),  # one inserted
        ([10, 11, 12, 97, 98, 99, 13, 14], [15, 16, 17, 18]),  # three inserted
        ([10, 11, 12, *range(70, 90), 13, 14], [15, 16, 17, 18]),  # many inserted
        ([10, 11, 12, 16], [17, 18, 19, 20]),  # three deleted
        ([10, 11, 12, 35, 36], [37, 38, 39]),  # many deleted: two equal tokens are needed
        ([10, 11, 12, 98, 99, 15, 16], [17, 18, 19, 20]),  # two replaced
        ([*TEXT[:20], 98, 99, 97, 96, *TEXT[3:7]], [17, 18, 19, 20]),  # an earlier part is repeated
    ],
)
def test_it_is_found_again_after_a_change(output, expected):
    assert after(output) == expected


def test_a_wrong_guess_does_not_move_the_place_where_the_text_is_looked_for():
    """50 occurs by chance later on; the text goes on where it diverged."""
    prediction = [10, 11, 12, 13, 14, 15, 16, 50, 17, 18]
    assert after([10, 11, 50, 12, 13], prediction=prediction) == [14, 15, 16, 50]


def test_while_it_is_lost_the_rows_own_text_is_looked_up():
    row = PredictedRow([10, 11, 12], prompt=4)
    assert row.guess([5, 6, 7, 8], 2) == [10, 11]
    assert row.guess([5, 6, 7, 8, 1, 2, 3, 4, 5, 6], 2) == [7, 8]


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=30), st.integers(1, 6))
def test_drafts_are_parts_of_the_prediction(prediction, output, depth):
    follower = Follower(prediction)
    for token in output:
        follower.read(token)
        draft = follower.draft(depth)
        parts = [prediction[i : i + len(draft)] for i in range(len(prediction) + 1)]
        assert len(draft) <= depth
        assert draft in parts


@dataclass(frozen=True)
class Predicted(Subject):
    """Every row carries a prediction."""

    def row(self, pair: Pair, max_tokens: int, seed: int = 0, **limits: Any) -> Row:
        return super().row(pair, max_tokens, seed, prediction=(2, 0, 1, 3, 2), **limits)


@pytest.mark.parametrize("rule", ["token", "block", "chosen"])
def test_the_loop_is_exact_with_a_prediction(rule):
    shape = Shape((-1, -1, 0)) if rule == "chosen" else None
    subject = Predicted(rules.get(rule), lambda: Fixed(2, shape=shape), drafter=lambda table: Prediction(table.vocab))
    check = check_cycles("x", subject, Pair.random(1))
    assert check.passed, check.detail


def test_its_chains_may_be_longer_than_the_policys_own_limit():
    own, long = (AcceptanceEstimate(1.0, AcceptanceConfig(reach=64), longest_chain=longest) for longest in (None, 31))
    assert (len(own.nodes(8)), len(long.nodes(8))) == (8, Prediction.longest_chain)


def test_captured_cycles_have_long_chains_for_it():
    pytest.importorskip("triton", reason="needs Triton")
    from slipstream.engines.native.captured.sizes import chain_depths, size_for

    assert chain_depths(None)[-1] == 8
    assert chain_depths(Prediction.longest_chain)[-1] == Prediction.longest_chain
    rule, budget = Token.device_rule, [Budget(12)]
    assert rule is not None
    assert size_for(budget, rule, Prediction.longest_chain) == DraftSize(15)
    assert size_for(budget, rule) == DraftSize(12)


def test_a_row_without_a_prediction_is_looked_up():
    drafter = Prediction(50)
    row = Row(Request([1, 2, 3, 1, 2]))
    drafter.open([row])
    assert drafter.new(row).guess(row.tokens, 2) == [3, 1]
