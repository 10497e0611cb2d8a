"""Cycles that are larger than they need be serve until they have cost what the right one would."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.engines.native.sizes import DEPTHS, GROWN, PLAIN, Common, Size
from slipstream.engines.native.stock import EXPECTED, Stock

RULE, ROOM = "greedy", 1 << 12
SIZES = [*map(Size, DEPTHS), *GROWN]


def capture(stock: Stock, common: Common, size: Size, lines: int, seconds: float) -> None:
    whole = SimpleNamespace(rehearse=lambda: seconds)
    stock.add(common.kind(size, RULE, lines), SimpleNamespace(whole=whole))


def find(stock: Stock, common: Common, size: Size, crowd: int = 1, pure: bool = False):
    return stock.find(common, size, RULE, crowd, ROOM, pure)


def test_the_first_is_captured_for_all_who_are_on_their_way():
    few = Common(3, 100, False)
    assert find(Stock(), few, Size(3), crowd=50).rows == 64
    assert find(Stock(), few, Size(3)).rows == 4
    assert find(Stock(), few, Size(10, 6, 24), crowd=64).rows == 32, "a pass of 1,600 tokens is too wide"


def test_a_larger_one_serves_until_it_has_cost_as_much_as_capturing():
    stock, many, few = Stock(), Common(40, 100, False), Common(3, 100, False)
    capture(stock, many, Size(5), 64, 0.002)
    large = find(stock, many, Size(5))
    assert (large.rows, large.depth) == (64, 5)
    found = [find(stock, few, Size(3)) for _ in range(2 * int(EXPECTED / 0.002) + 2)]
    assert found[0] == large
    assert (found[-1].rows, found[-1].depth) == (4, 3)
    assert EXPECTED / 0.002 * 0.9 < found.index(found[-1]) <= len(found)
    capture(stock, few, Size(3), 4, 0.001)
    assert find(stock, few, Size(3)) == found[-1]
    assert find(stock, few, Size(2)) == found[-1], "the cheapest of those that are large enough"
    assert find(stock, Common(5, 100, False), Size(2)) == large


def test_what_does_not_hold_the_rows_does_not_serve():
    stock, few = Stock(), Common(3, 100, False)
    capture(stock, few, Size(3), 4, 0.001)
    assert find(stock, Common(3, 100, True), Size(3)).cut, "another law"
    assert find(stock, Common(3, 5000, False), Size(3)).parts > find(stock, few, Size(3)).parts
    assert find(stock, few, Size(3, 6, 8)).nodes == 8, "a chain holds no tree"
    assert find(stock, few, PLAIN, pure=True).depth == 0, "whoever chose to draft nothing shall not pay for drafts"
    assert find(stock, few, PLAIN).depth == 3, "a row at its end rides along"
    assert stock.find(few, Size(2), RULE, 1, 103, False).depth == 2, "no room for a longer draft"


def test_prices_of_sizes_that_are_not_there_are_rather_too_high():
    stock, few = Stock(), Common(8, 100, False)
    assert [offer.depth for offer in stock.menu(few, RULE, SIZES, lambda _: True)] == [0]
    capture(stock, few, PLAIN, 64, 1.0)
    menu = stock.menu(few, RULE, SIZES, lambda _: True)
    assert [(offer.depth, offer.nodes, offer.there) for offer in menu] == [(0, 0, True), (3, 0, False)]
    capture(stock, few, Size(3), 64, 1.3)
    menu = {(o.depth, o.nodes): o for o in stock.menu(few, RULE, SIZES, lambda _: True)}
    assert menu[3, 0].there
    assert menu[8, 0].seconds == pytest.approx(1.8)
    assert menu[6, 15].seconds == pytest.approx(2.5), "by its tokens"
    assert [o.depth for o in stock.menu(few, RULE, SIZES, lambda _: False)] == [0, 3]
    chains = {(o.depth, o.nodes) for o in stock.menu(few, RULE, SIZES, lambda cost: cost < 1)}
    assert chains == {(depth, 0) for depth in DEPTHS}, "the first tree takes long"
    capture(stock, few, Size(3), 8, 1.1)
    assert [o.seconds for o in stock.menu(few, RULE, SIZES, lambda _: False)] == [1.0, 1.1], "the cheaper of two"


def test_what_cycles_took_counts_and_else_what_the_host_added_to_others():
    stock, few = Stock(), Common(8, 100, False)
    capture(stock, few, PLAIN, 8, 1.0)
    capture(stock, few, Size(3), 8, 1.5)
    for _ in range(5):
        stock.paid(few.kind(PLAIN, RULE, 8), 8, 1.25)
    assert [o.seconds for o in stock.menu(few, RULE, SIZES, lambda _: False)] == [1.25, 1.75]
    stock.paid(few.kind(Size(3), RULE, 8), 7, 3.0)
    assert [o.seconds for o in stock.menu(few, RULE, SIZES, lambda _: False)] == [1.25, 3.0]
    assert [o.seconds for o in stock.menu(Common(2, 100, False), RULE, SIZES, lambda _: False)] == [1.25, 1.75]


def test_what_catching_up_takes_is_believed_when_it_was_seen_a_few_times():
    stock, few = Stock(), Common(3, 100, False)
    capture(stock, few, Size(3), 4, 1.0)
    for seconds, believed in ((6.0, 0.0), (1.5, 0.5), (3.0, 2.0), (1.5, 0.5)):
        stock.caught_up(few.kind(Size(3), RULE, 4), 3, 1000, seconds)
        assert stock.late(1024) == believed, "less what the cycle takes anyway"
    assert stock.late(512) == 0.25
    assert stock.late(0) == 0.0


def test_what_was_captured_is_dropped_when_a_cache_has_moved_and_not_before():
    stock, few = Stock(), Common(3, 100, False)
    stock.lie_at((1, 1))
    capture(stock, few, PLAIN, 4, 0.001)
    stock.lie_at((1, 1))
    assert len(stock.cycles) == 1
    stock.lie_at((1, 2))
    assert not stock.cycles
    assert stock.price(few.kind(PLAIN, RULE, 4), 3) == 0.001, "what it costs is still known"
