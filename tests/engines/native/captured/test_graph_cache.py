"""Cycles that are larger than they need be serve until they have cost what the right one would."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.core.device import DraftSize
from slipstream.core.types import Request, Row
from slipstream.core.verify.match import Greedy
from slipstream.core.verify.token import Token
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.captured import graph_cache
from slipstream.engines.native.captured.capture_budget import COUNTED
from slipstream.engines.native.captured.graph_cache import MIN_CAPTURE, GraphCache
from slipstream.engines.native.captured.sizes import DEPTHS, GROWN, LEVELS, PLAIN, BatchShape, up_to

RULE, ROOM = Greedy.device_rule, 1 << 12
SIZES = [*map(DraftSize, DEPTHS), *GROWN]


def capture(stock: GraphCache, common: BatchShape, size: DraftSize, lines: int, seconds: float) -> None:
    whole = SimpleNamespace(rehearse=lambda: seconds)
    stock.add(common.key(size, RULE, lines), SimpleNamespace(whole=whole))


def find(stock: GraphCache, common: BatchShape, size: DraftSize, crowd: int = 1, pure: bool = False):
    return stock.find(common, size, RULE, crowd, ROOM, pure)


def test_the_first_is_captured_for_all_who_are_on_their_way():
    few = BatchShape(3, 100, False)
    assert find(GraphCache(), few, DraftSize(3), crowd=50).rows == 64
    assert find(GraphCache(), few, DraftSize(3)).rows == 4
    assert find(GraphCache(), few, DraftSize(10, 6, 24), crowd=64).rows == 32, "a pass of 1,600 tokens is too wide"


def test_a_larger_one_serves_until_it_has_cost_as_much_as_capturing():
    stock, many, few = GraphCache(), BatchShape(40, 100, False), BatchShape(3, 100, False)
    capture(stock, many, DraftSize(5), 64, 0.002)
    large = find(stock, many, DraftSize(5))
    assert (large.rows, large.depth) == (64, 5)
    found = [find(stock, few, DraftSize(3)) for _ in range(2 * int(MIN_CAPTURE / 0.002) + 2)]
    assert found[0] == large
    assert (found[-1].rows, found[-1].depth) == (4, 3)
    assert MIN_CAPTURE / 0.002 * 0.9 < found.index(found[-1]) <= len(found)
    capture(stock, few, DraftSize(3), 4, 0.001)
    assert find(stock, few, DraftSize(3)) == found[-1]
    assert find(stock, few, DraftSize(2)) == found[-1], "the cheapest of those that are large enough"
    assert find(stock, BatchShape(5, 100, False), DraftSize(2)) == large


def test_a_drafter_with_few_levels_is_offered_a_size_that_has_room_for_them_and_none_beyond():
    assert up_to(DEPTHS, 5) == (0, 1, 2, 3, 5)
    assert up_to(DEPTHS, 4) == (0, 1, 2, 3, 5)
    assert up_to(LEVELS, 5) == (3, 6)
    assert up_to(LEVELS, 2) == (3,)


def test_what_does_not_hold_the_rows_does_not_serve():
    stock, few = GraphCache(), BatchShape(3, 100, False)
    capture(stock, few, DraftSize(3), 4, 0.001)
    assert find(stock, BatchShape(3, 100, True), DraftSize(3)).cut, "another law"
    assert find(stock, BatchShape(3, 5000, False), DraftSize(3)).parts > find(stock, few, DraftSize(3)).parts
    assert find(stock, few, DraftSize(3, 6, 8)).nodes == 8, "a chain holds no tree"
    assert find(stock, few, PLAIN, pure=True).depth == 0, "whoever chose to draft nothing shall not pay for drafts"
    assert find(stock, few, PLAIN).depth == 3, "a row at its end rides along"
    assert stock.find(few, DraftSize(2), RULE, 1, 103, False).depth == 2, "no room for a longer draft"


def offers(stock, shape, may_capture):
    """The sizes that can be chosen."""
    return [offer for offer in stock.menu(shape, RULE, SIZES, may_capture) if not offer.barred]


def test_prices_of_sizes_that_are_not_there_are_rather_too_high(monkeypatch):
    monkeypatch.setattr(graph_cache, "MIN_CAPTURE", 1e9)  # these cycles take a second
    stock, few = GraphCache(), BatchShape(8, 100, False)
    assert [offer.size.depth for offer in stock.menu(few, RULE, SIZES, lambda _: True)] == [0]
    capture(stock, few, PLAIN, 64, 1.0)
    menu = stock.menu(few, RULE, SIZES, lambda _: True)
    assert [(offer.size.depth, offer.size.nodes, offer.captured) for offer in menu] == [(0, 0, True), (3, 0, False)]
    assert [o.barred for o in stock.menu(few, RULE, SIZES, lambda _: False)] == [False, True], "too little time for it"
    capture(stock, few, DraftSize(3), 64, 1.3)
    menu = {(o.size.depth, o.size.nodes): o for o in stock.menu(few, RULE, SIZES, lambda _: True)}
    assert menu[3, 0].captured
    assert menu[8, 0].seconds == pytest.approx(1.8)
    assert menu[6, 15].seconds == pytest.approx(2.5), "by its tokens"
    assert [o.size.depth for o in offers(stock, few, lambda _: False)] == [0, 3]
    assert [o.size.depth for o in offers(stock, few, lambda _: True)] == [0, 3], "others have to be missed first"
    capture(stock, few, DraftSize(3), 8, 1.1)
    assert [o.seconds for o in offers(stock, few, lambda _: False)] == [1.0, 1.1], "the cheaper of two"


def test_few_rows_are_offered_a_cycle_of_their_own_if_only_one_for_many_is_captured():
    stock, few = GraphCache(), BatchShape(8, 100, False)
    for lines, plain in ((64, 0.002), (8, 0.001)):
        capture(stock, few, PLAIN, lines, plain)
    capture(stock, few, DraftSize(3), 64, 0.003)
    denied = offers(stock, few, lambda _: False)
    assert [(offer.seconds, offer.captured) for offer in denied] == [(0.001, True), (0.003, True)]
    assert find(stock, few, DraftSize(3)).rows == 64
    stock.missed(few, RULE, DraftSize(3), MIN_CAPTURE)
    offer = next(offer for offer in stock.menu(few, RULE, SIZES, lambda _: True) if offer.size == DraftSize(3))
    assert (offer.seconds, offer.captured) == (pytest.approx(0.00124), False)
    assert find(stock, few, DraftSize(3)).rows == 8, "whoever chooses it has it captured"


def test_a_barred_size_is_offered_once_as_much_was_lost_without_it_as_its_capture_takes():
    stock, few = GraphCache(), BatchShape(8, 100, False)
    capture(stock, few, PLAIN, 8, 0.001)
    capture(stock, few, DraftSize(3), 8, 0.0012)

    def barred() -> bool:
        menu = stock.menu(few, RULE, SIZES, lambda _: False)
        return next(offer.barred for offer in menu if offer.size == DraftSize(5))

    assert barred()
    stock.missed(few, RULE, DraftSize(5), 0.6 * MIN_CAPTURE)
    assert barred()
    assert find(stock, few, DraftSize(5)).depth == 5, "a user's wish is no matter of budgets"
    stock.missed(few, RULE, DraftSize(5), 0.6 * MIN_CAPTURE)
    assert not barred()


def test_plain_decoding_of_just_these_rows_is_captured_before_sizes_are_compared_with_it():
    stock, few = GraphCache(), BatchShape(8, 100, False)
    capture(stock, few, PLAIN, 64, 0.004)
    capture(stock, few, DraftSize(3), 64, 0.006)
    menus = [stock.menu(few, RULE, SIZES, lambda _: False) for _ in range(8)]
    assert [len(menu) > 1 for menu in menus] == [True] * 5 + [False] * 3, "after a twentieth of a second was lost"
    assert find(stock, few, PLAIN).rows == 8
    capture(stock, few, PLAIN, 8, 0.001)
    assert len(stock.menu(few, RULE, SIZES, lambda _: False)) > 1


def test_what_cycles_took_counts_and_else_what_the_host_added_to_others(monkeypatch):
    monkeypatch.setattr(graph_cache, "MIN_CAPTURE", 1e9)  # these cycles take a second
    stock, few = GraphCache(), BatchShape(8, 100, False)
    capture(stock, few, PLAIN, 8, 1.0)
    capture(stock, few, DraftSize(3), 8, 1.5)
    for _ in range(5):
        stock.costs.learn(few.key(PLAIN, RULE, 8), 8, 1.25)
    assert [o.seconds for o in offers(stock, few, lambda _: False)] == [1.25, 1.75]
    stock.costs.learn(few.key(DraftSize(3), RULE, 8), 7, 3.0)
    assert [o.seconds for o in offers(stock, few, lambda _: False)] == [1.25, 3.0]
    assert [o.seconds for o in offers(stock, BatchShape(2, 100, False), lambda _: False)] == [1.25, 1.75]


def test_what_catching_up_takes_is_the_least_of_what_was_seen_after_the_first_times():
    stock, few = GraphCache(), BatchShape(3, 100, False)
    capture(stock, few, DraftSize(3), 4, 1.0)
    for seconds, believed in ((6.0, 0.0), (4.0, 0.0), (3.0, 2.0), (1.5, 0.5), (3.0, 0.5)):
        stock.costs.learn_reading(few.key(DraftSize(3), RULE, 4), 3, 1000, seconds)
        assert stock.costs.reading(1024) == believed, "less what the cycle takes anyway"
    assert stock.costs.reading(512) == 0.25
    assert stock.costs.reading(0) == 0.0


def test_what_was_captured_is_dropped_when_a_cache_has_moved_and_not_before():
    stock, few = GraphCache(), BatchShape(3, 100, False)
    stock.set_version((1, 1))
    capture(stock, few, PLAIN, 4, 0.001)
    stock.set_version((1, 1))
    assert len(stock.cycles) == 1
    stock.set_version((1, 2))
    assert not stock.cycles
    assert stock.costs.seconds(few.key(PLAIN, RULE, 4), 3) == 0.001, "what it costs is still known"


def test_a_rule_or_drafter_that_works_in_another_way_takes_the_ordinary_path():
    class OtherToken(Token):
        def verify(self, draft, target, noise):
            return super().verify(draft, target, noise)

    class Renamed(Token):
        name = "renamed"

    class OtherDrafter(NoDrafter):
        def propose(self, rows, budget, noise):
            return super().propose(rows, budget, noise)

    assert OtherToken.device_rule is None
    assert Token(acceptance=lambda target, draft: target).device_rule is None
    assert Renamed.device_rule is Token.device_rule
    assert OtherDrafter(8).device_form(None) is None
    assert NoDrafter(8).device_form(None) is not None


def test_after_a_capture_that_compiled_kernels_the_next_is_expected_to_take_less(monkeypatch):
    stock, few, asked = GraphCache(), BatchShape(3, 100, False), []
    capture(stock, few, PLAIN, 4, 0.001)
    clock = iter([0.0, 12.0])
    monkeypatch.setattr(graph_cache, "perf_counter", lambda: next(clock))
    with stock.captures(few.key(DraftSize(3), RULE, 4)):
        pass
    stock.menu(few, RULE, SIZES, lambda seconds: not asked.append(seconds))
    assert asked[0] == COUNTED


def test_sizes_that_a_warm_up_timed_for_shorter_texts_are_offered_at_their_price(monkeypatch):
    """Otherwise depth 3 is captured, then depth 2, then depth 1, each once enough was lost without it."""
    stock, short, long = GraphCache(), BatchShape(32, 200, False), BatchShape(32, 1200, False)
    chains = [DraftSize(depth) for depth in (0, 1, 2, 3, 5)]
    for size, milliseconds in zip(chains, (0.7, 0.8, 1.2, 1.3, 1.5), strict=True):
        for lines in (8, 32):
            capture(stock, short, size, lines, milliseconds / 1e3)
    capture(stock, long, PLAIN, 32, 0.001)
    capture(stock, long, PLAIN, 8, 0.0008)
    menu = stock.menu(long, RULE, chains, lambda _: True)
    assert [(offer.size.depth, offer.known) for offer in menu[1:]] == [(1, True), (2, True), (3, True), (5, True)]
    assert [offer.seconds for offer in menu] == pytest.approx([0.001, 0.0011, 0.0015, 0.0016, 0.0018])
    assert [offer.tail for offer in menu] == pytest.approx([0.0008, 0.0009, 0.0013, 0.0014, 0.0016])
    assert not any(offer.barred for offer in menu)
    assert all(offer.barred for offer in stock.menu(long, RULE, chains, lambda _: False)[1:])


def test_prices_are_for_the_texts_half_way_through_what_comes():
    rows = [Row(Request([1] * 100, max_tokens=left)) for left in (50, 1000)]
    assert BatchShape.of(rows).cached == 200
    assert BatchShape.of(rows, 256).cached == 200 + (50 + 256) // 2
    assert BatchShape.of(rows).with_rows(6).cached == 600


def test_rows_are_priced_by_their_own_cycle_where_one_for_longer_texts_seems_cheaper():
    stock, short, long = GraphCache(), BatchShape(4, 100, False), BatchShape(4, 1100, False)
    for size, seconds in ((PLAIN, 0.001), (DraftSize(2), 0.0015)):
        capture(stock, short, size, 4, seconds)
        capture(stock, long, size, 4, seconds / 2)  # timed once, for texts that were short
    prices = {offer.size: offer.seconds for offer in stock.menu(short, RULE, SIZES[:3], lambda cost: False)}
    assert prices[PLAIN] == pytest.approx(0.001)
    assert prices[DraftSize(2)] == pytest.approx(0.0015)
    assert find(stock, short, DraftSize(2)) == short.key(DraftSize(2), RULE, 4), "that is the one that runs"
    assert stock.menu(long, RULE, SIZES[:3], lambda cost: False)[0].seconds == pytest.approx(0.0005)
