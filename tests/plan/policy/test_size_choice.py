"""Of cycles that come in sizes, the fastest: what drafts are worth against what a size costs."""

from __future__ import annotations

import pytest

from slipstream.core.device import DraftSize, SizeOption
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.plan.policy.acceptance import AcceptanceEstimator
from slipstream.plan.policy.config import AdaptiveConfig, SizeConfig
from slipstream.plan.policy.size_choice import SizeChoice


def rows(count: int) -> list[Row]:
    return [Row(Request([1, 2], Sampling(0), 1000)) for _ in range(count)]


def menu(step: float, there: bool = True) -> list[SizeOption]:
    """A plain cycle takes 1; a level of drafts adds `step`."""
    return [SizeOption(DraftSize(depth), 1 + step * depth, there or not depth) for depth in (0, 1, 2, 3, 5, 8)]


def run(chooser: SizeChoice, some: list[Row], offers: list[SizeOption], rate: float, cycles: int) -> list[int]:
    """Depths chosen while so many of the drafted tokens are accepted, in a fixed pattern."""
    chosen, turn = [], 0.0
    for _ in range(cycles):
        offer = chooser.held(some) or chooser.choose(some, offers)
        chosen.append(offer.depth)
        judged = []
        for _ in some:
            line = []
            for _ in range(offer.depth):
                turn += rate
                line.append((0 if turn >= 1 else -1, 1))
                if turn < 1:
                    break
                turn -= 1
            judged.append(line)
        for r in chooser.observed(len(some)):
            if judged[r]:
                chooser._acceptance.learn(some[r], len(judged[r]), judged[r])
    return chosen


def opened(count: int) -> tuple[SizeChoice, list[Row]]:
    config = AdaptiveConfig()
    return SizeChoice(AcceptanceEstimator(config.acceptance), config), rows(count)


@pytest.mark.parametrize("count", [1, 4, 40])
def test_good_drafts_go_deep_where_steps_are_cheap(count):
    chosen = run(*opened(count), menu(0.05), 0.95, 80)
    assert set(chosen[40:]) <= {5, 8}
    assert chosen[40:].count(8) > 20


@pytest.mark.parametrize("count", [1, 4, 40])
def test_drafts_that_do_not_pay_are_left_and_tried_rarely(count):
    chosen = run(*opened(count), menu(0.3), 0.1, 800)
    tries = [depth for depth in chosen[80:] if depth]
    assert set(tries) <= {1}
    wait = (0.3 + SizeConfig().change) / SizeConfig().least_trial  # plain cycles
    assert 720 / (2 * wait) < len(tries) < 720 / wait * 3


def test_a_size_that_is_not_captured_is_no_attempt():
    chooser, some = opened(2)
    run(chooser, some, menu(0.3), 0.05, 100)
    assert set(run(chooser, some, menu(0.9, there=False), 0.0, 300)) == {0}


def test_what_rows_have_to_draft_is_all_that_counts():
    chooser, some = opened(2)
    assert chooser.choose(some, menu(0.1), [0, 0]).depth == 0
    assert chooser.choose(some, menu(0.1), [2, 1]).depth == 2
    assert chooser.choose(some, menu(0.4), [8, 0]).depth == 0, "one row's gain, everyone's price"


def test_a_decision_holds_until_another_row_comes():
    chooser, some = opened(3)
    first = chooser.choose(some, menu(0.05))
    assert [chooser.held(some) for _ in range(SizeConfig().hold)] == [first] * (SizeConfig().hold - 1) + [None]
    chooser.choose(some, menu(0.05))
    assert chooser.held(some[:2]) is not None, "rows that leave change nothing"
    assert chooser.held([*some, *opened(1)[1]]) is None


def test_a_size_in_use_is_left_only_for_one_that_is_clearly_faster():
    chooser, some = opened(1)
    plain, short, deep = SizeOption(DraftSize(0), 1.0), SizeOption(DraftSize(2), 1.2), SizeOption(DraftSize(3), 1.3)
    times = chooser._paced(some, [plain, short, deep], 0.0)
    even = [plain, short, deep._replace(seconds=1.3 * times[1] / times[2])]  # both are as fast

    def changed(factor: float) -> list[SizeOption]:
        return [*even[:2], even[2]._replace(seconds=even[2].seconds * factor)]

    stay = SizeConfig().stay
    assert chooser.choose(some, changed(1.01)).depth == 2
    assert chooser.choose(some, changed(1.005 / stay)).depth == 2
    assert chooser.choose(some, changed(0.995 / stay)).depth == 3
    assert chooser.choose(some, changed(0.995 * stay)).depth == 3
    assert chooser.choose(some, changed(1.005 * stay)).depth == 2
    assert chooser.choose(some, changed(0.995), [3]).depth == 3, "drafts of the host are launched one by one"


def test_a_tree_is_chosen_where_its_second_candidates_are_worth_it():
    chooser, some = opened(1)
    plain, chain, tree = (
        SizeOption(DraftSize(0), 1.0),
        SizeOption(DraftSize(3), 1.3),
        SizeOption(DraftSize(3, 6, 8), 1.31),
    )
    assert chooser.choose(some, [plain, chain, tree]) == tree.size
    assert chooser.choose(some, [plain, chain, tree._replace(seconds=2.0)]) == chain.size


def test_what_drafting_takes_before_it_can_begin_must_be_won_back():
    chooser, some = opened(2)
    assert chooser.choose(some, menu(0.1), delay=100.0).depth > 0, "2,000 tokens are left to be said"
    for row in some:
        row.tokens += [1] * 990
    assert chooser.choose(some, menu(0.1), delay=100.0).depth == 0
    assert chooser.choose(some, menu(0.1)).depth > 0


def test_that_drafts_pay_for_the_last_rows_of_a_batch_brings_no_trial_for_the_next():
    chooser, many = opened(64)
    tries = {64: 0, 2: 0}
    for _ in range(10):
        for some, price in [(many, 0.5)] * 7 + [(many[:2], 0.01)]:
            tries[len(some)] += sum(map(bool, run(chooser, some, menu(price), 0.3, 32)))
    assert tries[64] < 40, "of 2,240 cycles"
    assert tries[2] > 100, "of 320"


def test_a_price_that_is_known_of_cycles_like_it_is_not_doubted():
    chooser, some = opened(1)
    plain, short = SizeOption(DraftSize(0), 1.0), SizeOption(DraftSize(1), 1.3, captured=False)
    chooser.choose(some, [plain, short])
    times = chooser._paced(some, [plain, short, short._replace(known=True)], 0.0)
    assert times[1] == pytest.approx(SizeConfig().uncaptured * times[2])


@pytest.mark.parametrize(("left", "tries"), [(1000, True), (400, True), (80, False)])
def test_no_trial_begins_where_rows_are_soon_done(left, tries):
    chooser, some = opened(8)
    run(chooser, some, menu(0.3), 0.05, 200)
    for row in some:
        row.tokens += [1] * (1000 - left)
    texts = 20.0  # seconds that the head reads first
    chosen = [(chooser.held(some) or chooser.choose(some, menu(0.3), delay=texts)).depth for _ in range(12000)]
    assert any(chosen) == tries
    new = rows(8)
    chosen = [(chooser.held(new) or chooser.choose(new, menu(0.3), delay=texts)).depth for _ in range(12000)]
    assert any(chosen), "new rows have more left"
