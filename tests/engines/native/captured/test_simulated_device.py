"""Batches that come and go on a simulated device: what a policy captures and chooses is never dearer than drafting
nothing, but for the moment it is granted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.core.device import DraftSize, GraphKey, SizeMenu
from slipstream.core.interfaces import Drafter
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.core.verify.match import Greedy
from slipstream.drafters.prediction import Prediction
from slipstream.drafters.table import TableDrafter
from slipstream.engines.native.captured.capture_budget import GRANT, CaptureBudget
from slipstream.engines.native.captured.graph_cache import GraphCache
from slipstream.engines.native.captured.sizes import AHEAD, DEPTHS, GROWN, PLAIN, BatchShape, chain_depths, size_for
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan.policy.config import AcceptanceConfig
from slipstream.plan.policy.policies import Adaptive, Fixed

RULE, TOKENS, PROMPT, HOST, EACH = Greedy.device_rule, 128, 170, 4e-4, 1.2e-5
MODEL, DRAFTER = TableModel(Table.random(8, 1, 0)), TableDrafter(Table.random(8, 1, 1))
SIZES = [*map(DraftSize, DEPTHS), *GROWN]


@dataclass
class Machine:
    """Seconds of a device like those that were measured: a level of a chain, a token of a pass."""

    rate: float  # at which drafted tokens are accepted
    base: float = 7e-4
    level: float = 5e-5
    token: float = 1.2e-6
    reading: float = 0.0  # until a drafter has read the prompts of all rows, which it begins only when it drafts
    context: float = 0.0  # of a cached token
    longest: int = 200  # tokens of the longest row: graphs read no more than they were captured for
    first_readings: tuple[float, ...] = ()  # further seconds of the first ones, which compile and capture passes
    tokens: int = TOKENS
    spread: float = 0.0  # of the rate, from row to row
    fade: float = 1.0  # the chance of a rejection at the beginning of a text, in multiples of that at its end
    capture_seconds: float = 0.2  # of a chain
    ready: int | None = None  # tokens that the host has drafted for a row: no level costs anything
    drafter: Drafter = DRAFTER
    read: set[Row] = field(default_factory=set)
    now: float = 0.0
    captured: int = 0
    stock: GraphCache = field(default_factory=GraphCache)
    policy: Adaptive = field(default_factory=Adaptive)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.allowance = CaptureBudget(lambda: self.now)

    @property
    def sizes(self) -> list[DraftSize]:
        if self.ready:
            return [DraftSize(depth) for depth in chain_depths(self.drafter.longest_chain)]
        return [size for size in SIZES if not (self.reading and size.nodes)]  # a draft model has no trees here

    def plainly(self, count: int) -> float:
        """Tokens per second where nothing is drafted and all is captured."""
        whole = BatchShape(count, 200, False)
        text = self.context * count * (2 + (self.tokens - 1) / 2)
        return count / (HOST + text + max(self.seconds(whole.key(PLAIN, RULE, whole.lines(PLAIN))), EACH * count))

    def _rate(self, row: Row) -> float:
        """A row's acceptance at the place it is at; its mean over the text is about that of the row."""
        place = 2 * row.emitted / self.tokens - 1  # from -1 to 1
        return 1 - (1 - self.rates[row]) * 2 * self.fade ** ((1 - place) / 2) / (1 + self.fade)

    def missing(self, rows: list[Row]) -> int:
        """Tokens that a draft model would have to read before it drafts."""
        return PROMPT * len({*rows} - self.read) if self.reading else 0

    def seconds(self, key: GraphKey) -> float:
        size = key.size
        wide = 3 if size.nodes else 1
        return self.base + self.level * size.depth * wide + self.token * key.rows * (size.slots + 1)

    def capture(self, key: GraphKey) -> None:
        self.captured += 1
        with self.allowance.captures(key.size.depth > 0), self.stock.captures(key):
            self.now += 4.0 if key.size.nodes else self.capture_seconds
        self.stock.add(key, SimpleNamespace(whole=SimpleNamespace(rehearse=lambda: self.seconds(key))))

    def serve(self, count: int) -> float:
        """Tokens per second of a batch, until its last row is done."""
        began, rows = self.now, [Row(Request([1, 2], Sampling(0), self.tokens)) for _ in range(count)]
        self.policy.open(rows, MODEL, self.drafter, Greedy())
        left, self.rates = (
            rows,
            {row: min(max(0.97, self.rate), max(0.03, self.random.gauss(self.rate, self.spread))) for row in rows},
        )
        while left:
            with self.allowance.runs():
                self._cycle(left)
            left = [row for row in left if row.emitted < self.tokens]
        self.policy.close(rows)
        return count * self.tokens / (self.now - began)

    def _cycle(self, rows: list[Row]) -> None:
        cached, ahead = sum(row.length for row in rows), BatchShape.of(rows, AHEAD).cached
        common, crowd = BatchShape(len(rows), self.longest, False, cached=ahead), len(rows)
        free = partial(self.allowance.left, common.lines(PLAIN, crowd))
        budget = self.policy.choose(
            rows,
            lambda: SizeMenu(
                self.stock.menu(common, RULE, self.sizes, free),
                self.stock.costs.reading(self.missing(rows)),
                partial(self.stock.missed, common, RULE),
            ),
            [self.ready] * len(rows) if self.ready else None,
        )
        size = size_for([budget], RULE, self.drafter.longest_chain)
        key = self.stock.find(common, size, RULE, crowd, 1 << 12, True)
        if fresh := key not in self.stock.cycles:
            self.capture(key)
        counts, behind = list[int](), self.missing(rows) if size.depth else 0
        results = []
        for row in rows:
            judged = []
            while len(judged) < size.depth and (not judged or judged[-1][0] == 0):
                judged.append((0 if self.random.random() < self._rate(row) else -1, 1))
            kept = 1 + sum(rank == 0 for rank, _ in judged)
            row.tokens += [1] * kept
            counts.append(kept)
            results.append(SimpleNamespace(tokens=[1] * size.depth, emitted=[1] * kept, judged=judged))
        taken = HOST + self.context * cached + max(self.seconds(key), EACH * sum(counts))
        self.policy.observe_captured(rows, results)
        if behind:
            extra, *later = self.first_readings or (0.0,)
            self.first_readings = tuple(later)
            taken += self.reading + extra
            self.stock.costs.learn_reading(key, len(rows), behind, taken, cached)
            self.read |= {*rows}
        self.now += taken
        if not fresh and not behind:
            self.stock.costs.learn(key, len(rows), taken, cached)


@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("rate", [0.05, 0.65])
def test_once_it_has_captured_a_policy_is_never_below_plain_decoding(count, rate):
    machine = Machine(rate)
    speeds = [machine.serve(count) for _ in range(12)]
    assert machine.allowance.spent <= GRANT + 0.1 * machine.now
    usual = sorted(speeds)[len(speeds) // 2]
    assert usual > 0.95 * machine.plainly(count)
    if rate > 0.5:
        assert usual > (1.5 if count < 64 else 1.05) * machine.plainly(count), "at 64 telling takes most of the time"


@pytest.mark.parametrize("tokens", [16, 96])
@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("rate", [0.05, 0.9])
def test_nor_is_one_whose_draft_model_must_read_every_prompt_first(count, rate, tokens):
    """Prices of a real pair, of which the smaller model takes half as long as the larger one for a token."""
    machine = Machine(rate, base=1.6e-3, level=8e-4, token=1e-5, reading=0.02 + 5e-4 * count, tokens=tokens)
    speeds = [machine.serve(count) for _ in range(24)]
    usual = sorted(speeds[4:])[10]
    assert usual > 0.95 * machine.plainly(count)
    if rate > 0.5 and tokens > 16 and count < 64:
        assert usual > 1.1 * machine.plainly(count)


def test_short_answers_are_drafted_although_the_first_readings_took_long():
    """Prices of speech: a short prompt, few tokens, and a draft model of a third of the target's layers."""
    machine = Machine(0.9, base=9e-4, level=5e-4, reading=2e-3, tokens=26, first_readings=(5.0, 0.4))
    speeds = [machine.serve(1) for _ in range(40)]
    assert sorted(speeds[20:])[10] > 1.2 * machine.plainly(1)


@pytest.mark.parametrize("count", [8, 32, 64])
@pytest.mark.parametrize("spread", [0.0, 0.08])
def test_nor_where_some_rows_fall_behind_and_are_waited_for(count, spread):
    machine = Machine(0.86, base=1.6e-3, level=8e-4, token=8e-6, reading=0.01 + 6e-4 * count, tokens=96, spread=spread)
    speeds = [machine.serve(count) for _ in range(12)]
    usual = sorted(speeds[4:])[4]
    assert usual > (1.0 if count == 8 else 0.95) * machine.plainly(count)


@pytest.mark.parametrize("spread", [0.1, 0.15])
def test_the_last_row_of_a_large_batch_is_done_no_later_than_by_plain_decoding(spread):
    """Drafts bring the average row forward, and the slowest one back."""
    ratios = []
    for rate in (0.5, 0.55, 0.6, 0.65):
        machine = Machine(rate, base=9e-4, token=2.2e-6, spread=spread)
        speeds = [machine.serve(64) for _ in range(24)]
        ratios.append(sorted(speeds[12:])[6] / machine.plainly(64))
    assert min(ratios) > 0.95
    assert sum(ratios) / len(ratios) > 1


def test_a_few_unlucky_tokens_are_no_reason_to_give_up_a_draft_model_for_good():
    machine = Machine(0.9, base=1.6e-3, level=8e-4, token=1e-5, reading=0.05, tokens=400)
    for _ in range(4):
        machine.serve(64)
    shared = machine.policy.acceptance.shared((DRAFTER, "greedy"))
    for _ in range(64):
        shared.learn_text(3, 10, AcceptanceConfig())
    speeds = [machine.serve(64) for _ in range(12)]
    usual = sorted(speeds)[6]
    assert usual > 1.1 * machine.plainly(64)
    assert shared.text_rate > 0.8, "it was 0.3"


@pytest.mark.parametrize(("fade", "rate"), [(0.33, 0.7), (5.0, 0.5)])
def test_rows_that_begin_together_are_not_judged_by_the_place_they_are_at(fade, rate):
    """Acceptance falls or rises along every text. What the last cycles of a batch showed is not true of the next one,
    nor what the first ones showed of its middle."""
    usual = []
    for policy in (Adaptive(), *map(Fixed, (1, 2, 3))):
        machine = Machine(rate, base=9e-4, token=4e-6, spread=0.05, fade=fade, policy=policy)
        usual.append(sorted([machine.serve(64) for _ in range(16)][4:])[6])
    assert usual[0] > 0.95 * max(usual)
    assert usual[0] > 1.1 * machine.plainly(64)


@pytest.mark.parametrize("ready", [31, None])
def test_drafts_that_are_always_accepted_are_never_given_up(ready):
    """An exact prediction, or a draft model that is the target's equal: acceptance comes to 1 within rounding."""
    machine = Machine(1.0, 6e-4, 2e-5 * (ready is None), 8e-6, tokens=400, ready=ready)
    machine.drafter = Prediction(8) if ready else DRAFTER
    speeds = [machine.serve(1) / machine.plainly(1) for _ in range(12)]
    assert min(speeds[6:]) > (10 if ready else 3)


def test_rows_that_leave_make_nobody_capture():
    machine = Machine(0.65)
    machine.serve(64)
    before = machine.captured
    for _ in range(3):
        machine.serve(64)
    assert machine.captured <= before + 1


@pytest.mark.parametrize("count", [1, 8, 64])
def test_hopeless_text_is_worth_one_capture_and_no_more(count):
    machine = Machine(0.05)
    speeds = [machine.serve(count) for _ in range(24)]
    assert machine.captured <= 2, "plain decoding and a first size"
    assert min(speeds[2:]) > 0.97 * machine.plainly(count)


def test_few_rows_after_many_get_cycles_of_their_own():
    """Cycles for 256 rows cost more than drafting gains for eight. Those for eight rows are captured and pay."""
    machine = Machine(0.65, token=4e-6)
    for _ in range(3):
        machine.serve(256)
    speeds = [machine.serve(8) for _ in range(16)]
    assert sorted(speeds[8:])[4] > 1.3 * machine.plainly(8)


def test_a_spent_budget_does_not_keep_few_rows_from_a_cycle_of_their_own():
    """At 64 rows the policy spends all that it was granted. What eight rows lose without drafts pays for a capture."""
    machine = Machine(0.65, token=4e-6, capture_seconds=0.5)
    for _ in range(9):
        machine.serve(64)
    assert machine.allowance.spent > 0.6 * GRANT
    speeds = [machine.serve(8) for _ in range(20)]
    assert sorted(speeds[10:])[5] > 1.3 * machine.plainly(8)
    assert machine.captured < 12


def warm(machine: Machine, most: int) -> None:
    """Capture chains for up to so many rows, as a warm-up does."""
    for size in (size for size in SIZES if not size.nodes and size.depth <= 5):
        for halvings in range(most.bit_length()):
            count = most >> halvings
            machine.capture(BatchShape(count, machine.longest, False).key(size, RULE, count))


def test_longer_texts_than_those_of_the_warm_up_get_the_right_size_first():
    """Otherwise depth 3 is captured first, then depth 2, then depth 1, each once enough was lost without it."""
    machine = Machine(0.55, base=3e-4, level=2e-5, token=6e-6, reading=1e-4)
    warm(machine, 64)
    machine.longest = 1200
    before = machine.captured
    speeds = [machine.serve(32) for _ in range(8)]
    assert machine.captured <= before + 3
    assert min(speeds[2:]) > 1.05 * machine.plainly(32)


@pytest.mark.parametrize(("reading", "cost"), [(1e-3, 0.01), (3e-3, 0.015)])
def test_a_text_that_pays_is_found_out_soon_after_hopeless_ones(reading, cost):
    """The trials that find it out take little of the time of hopeless texts."""
    machine = Machine(0.1, base=2e-4, level=4e-5, reading=reading)
    warm(machine, 1)
    hopeless = [machine.serve(1) for _ in range(40)][10:]
    assert len(hopeless) / sum(1 / speed for speed in hopeless) > (1 - cost) * machine.plainly(1)
    machine.rate = 0.75
    assert min([machine.serve(1) for _ in range(20)][16:]) > 1.3 * machine.plainly(1)


def test_drafts_come_back_where_what_was_captured_is_gone_and_the_budget_is_spent():
    """Nothing that drafts is captured, so nothing can be tried. The time that trials may take pays for a capture."""
    machine = Machine(0.1, base=2e-4, level=1e-4, reading=1e-3)
    warm(machine, 64)
    for _ in range(3):
        machine.serve(64)
    machine.stock.set_version((1, 0))
    machine.allowance.spent = 20
    for _ in range(3):
        machine.serve(1)
    machine.rate = 0.75
    speeds = [machine.serve(1) for _ in range(24)]
    assert sorted(speeds[16:])[4] > 1.2 * machine.plainly(1)
