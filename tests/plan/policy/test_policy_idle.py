"""What an idle drafter costs: next to nothing, whatever its drafts and the reading of a text before them would cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Origin, Request, Row, Verdict
from slipstream.plan.policy import free_choice
from slipstream.plan.policy.config import RestConfig
from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.loss_budget import LossBudget
from slipstream.plan.policy.policies import Adaptive

PLAIN, TOKEN, STEP = 0.0074, 0.0035, 0.0015  # seconds of a plain pass, of a drafted token in it, of a draft's step


def tell(policy: Adaptive, row: Row, depth: int, kept: int) -> None:
    token, last = torch.zeros(depth, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    draft = Draft(Tree.chains([depth]), token, OneHot(token, 8))
    policy.observe([row], draft, Verdict(torch.arange(kept)[None], last, last.bool()))


@dataclass
class Engine:
    """One row at a time, with a drafter that reads what it missed of a row before it drafts."""

    reading: float = 0.0  # seconds of a token it missed
    accepted: int = 0  # tokens of every draft
    setup: float = 0.0  # seconds before the first draft of a row
    policy: Adaptive = field(default_factory=Adaptive)
    wakes: list[int] = field(default_factory=list)  # tokens that were read before each draft

    def request(self, prompt: int, tokens: int) -> tuple[float, float]:
        """Seconds against those of plain decoding, of the tokens after the first."""
        row, read, spent = Row(Request([1] * prompt, max_tokens=tokens)), 0, 0.0
        self.policy.acceptance.open(row, None, setup=self.setup)
        row.extend([1], [Origin.PLAIN], 1 << 20)
        while row.finish_reason is None:
            depth = min(self.policy.budget([row])[0].depth, row.room(1 << 20) - 1)
            kept, drafting = min(depth, self.accepted), 0.0
            if depth:
                self.wakes.append(row.length - read)
                setup = 0.0 if read else self.setup
                drafting, read = setup + STEP * depth + self.reading * (row.length - read), row.length
                tell(self.policy, row, depth, kept)
            self.policy.price(drafting, PLAIN + TOKEN * depth, 1 + depth)
            row.extend([1] * (kept + 1), [Origin.PLAIN] * (kept + 1), 1 << 20)
            spent += drafting + PLAIN + TOKEN * depth
        return spent, PLAIN * (tokens - 1)

    def speed(self, requests: int, prompt: int, tokens: int) -> float:
        """Against plain decoding."""
        spent, plain = map(sum, zip(*(self.request(prompt, tokens) for _ in range(requests)), strict=True))
        return plain / spent


@pytest.mark.parametrize("reading", [0.0, 1e-5, 5e-4])
@pytest.mark.parametrize("prompt", [20, 400])
def test_where_nothing_is_accepted_at_most_one_in_a_hundred_is_lost_after_the_first_requests(prompt, reading):
    engine = Engine(reading)
    engine.speed(6, prompt, 96)
    assert engine.speed(20, prompt, 96) >= 0.99
    assert engine.speed(2, prompt, 2000) >= 0.99


def test_a_drafter_that_opens_slowly_drafts_only_where_that_is_won_back():
    slow = Engine(accepted=8, setup=30 * PLAIN)
    assert slow.speed(10, 4, 64) == pytest.approx(1.0)
    assert not slow.wakes, "not even at first"
    quick = Engine(accepted=8, setup=4 * PLAIN)
    assert quick.speed(10, 4, 64) > 1.1
    assert quick.speed(10, 4, 64) > 1.1, "what setup took is not held against drafting"
    quick.wakes.clear()
    assert quick.speed(10, 4, 10) == pytest.approx(1.0)
    assert not quick.wakes, "few tokens are to come"


def test_rows_are_expected_to_be_as_long_as_others_were():
    engine = Engine(accepted=8, setup=4 * PLAIN)
    engine.speed(4, 4, 64)
    for _ in range(9):
        short = Row(Request([1], max_tokens=8))
        short.extend([1] * 8, [Origin.PLAIN] * 8, 1 << 20)
        engine.policy.close([short])
    engine.wakes.clear()
    assert engine.speed(4, 4, 64) == pytest.approx(1.0)
    assert not engine.wakes


def test_a_text_too_long_to_be_read_is_left_alone_and_a_short_one_is_not():
    engine = Engine(reading=5e-4)
    engine.speed(6, 400, 96)
    engine.wakes.clear()
    engine.speed(10, 400, 64)
    assert not engine.wakes, "reading 400 tokens takes as long as 27 passes"
    engine.speed(10, 4, 64)
    assert engine.wakes


@pytest.mark.parametrize(("reading", "least"), [(0.0, 1.2), (1e-5, 1.2)])
def test_where_all_is_accepted_drafts_are_found_to_pay_again(reading, least):
    engine = Engine(reading)
    engine.speed(6, 60, 96)
    engine.accepted = 99
    assert engine.speed(10, 60, 400) > least


def test_nothing_is_thought_about_that_the_purse_does_not_cover(monkeypatch):
    thoughts = []
    thought = free_choice.best
    monkeypatch.setattr(free_choice, "best", lambda *rest: thoughts.append(rest) or thought(*rest))
    engine = Engine()
    engine.speed(6, 20, 96)
    engine.policy.free.losses.balance = 0.1 * PLAIN
    thoughts.clear()
    engine.request(20, 30)
    assert not thoughts


def test_cycles_of_rest_are_booked_together():
    one, other = LossBudget(), LossBudget()
    one.balance = other.balance = 0.0
    for _ in range(5):
        one.book(0.0, 1.0)
    other.book(0.0, 1.0, cycles=5)
    assert one.balance == pytest.approx(other.balance)


def test_less_is_risked_while_drafts_fail_and_all_of_it_after_one_that_did_not():
    purse = LossBudget()
    for _ in range(purse.config.patience):
        purse.settle(False)
    assert purse.income == purse.config.share, "some bad luck"
    for _ in range(9):
        purse.settle(False)
    assert purse.income == pytest.approx(purse.config.failing_share * purse.config.share)
    purse.settle(True)
    assert purse.income == purse.config.share


def test_reading_is_told_from_drafting():
    costs = CostModel()
    costs.learn(0.01, 1)
    costs.draft(0.11, 1, late=True, missed=100)
    assert costs.unclear, "the first of all, and with a text to read"
    assert costs.reading(50) == pytest.approx(0.05)
    costs.draft(0.002, 1)
    assert not costs.unclear
    costs.draft(0.102, 1, late=True, missed=200)
    assert costs.chain(1) == 0.002
    assert costs.reading(50) == pytest.approx(0.025)
    assert costs.reading(-3) == 0


def test_after_the_first_draft_a_second_one_tells_its_price():
    policy, row = Adaptive(), Row(Request([1] * 50))
    depths = []
    for _ in range(8):
        depth = policy.budget([row])[0].depth
        depths.append(depth)
        tell(policy, row, depth, 0)
        missed = 50 if 1 in depths and depths.index(1) == len(depths) - 1 else 0
        policy.price(depth * (STEP + 1e-3 * missed), PLAIN + TOKEN * depth, 1 + depth)
    first = depths.index(1)
    assert depths[first : first + 3] == [1, 1, 0]
    assert policy.costs.chain(1) == pytest.approx(STEP)


def test_a_row_rests_without_a_look_at_it():
    engine = Engine()
    engine.speed(6, 20, 96)
    policy, row, rest = engine.policy, Row(Request([1] * 5)), RestConfig().min_rest
    policy.free.losses.balance = 0.01 * PLAIN
    policy.budget([row])
    policy.price(0.0, PLAIN, 1)
    assert policy.free._rest == rest
    assert policy.free._idle <= RestConfig().forgotten
    before = policy.free._unbooked
    for _ in range(rest - 1):
        assert policy.budget([row])[0].depth == 0
        policy.price(0.0, PLAIN, 1)
    assert policy.free._unbooked == before + rest - 1
    assert policy.free.losses.balance == pytest.approx(0.01 * PLAIN), "booked when the rest is over"
    policy.budget([row])
    policy.price(0.0, PLAIN, 1)
    assert policy.free._unbooked == 0
    assert policy.free.losses.balance > 0.01 * PLAIN
