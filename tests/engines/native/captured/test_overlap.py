"""The next captured cycle is launched before the last one's record is read: nothing of that may show in an answer."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from heads import eagle
from slipstream.core.device import ChainResults, DraftSize
from slipstream.core.interfaces import Policy
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Request
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.captured import deferred, graph_cache
from slipstream.engines.native.captured.parts import PendingRecord
from slipstream.engines.native.captured.runner import CapturedRunner
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu import sample as draw
from slipstream.models.cache import tensors
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Adaptive, Fixed
from tiny import VOCAB, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IDS = sorted(random.Random(3).sample(range(VOCAB), 60))
PROMPTS = ([5, 9, 2], [7, 1, 8, 8, 3], [4, 4, 6, 2])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that find nothing to do cost the interpreter as much as others."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pass_sizes, "LEAST", 1)
        monkeypatch.setattr(draw, "BLOCK", 128)


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few rows, too, get their tokens once for several cycles."""
    monkeypatch.setattr(deferred, "LEAST_ROWS", 1)
    monkeypatch.setattr(deferred, "MOST_SECONDS", 1e9)
    monkeypatch.setattr(deferred, "MOST_CYCLES", 4)
    monkeypatch.setattr(deferred, "SOME_ROWS", 2)


class Always(Fixed):
    """The same depth, whatever the rows say."""

    reads_rows = False


class Overlaps(CapturedRunner):
    """Counts the cycles that were launched before the record of the last one was read."""

    early = handed_over = late = 0

    def land_deferred(self, cycles):
        self.late += len(cycles)
        super().land_deferred(cycles)

    def launch_next(self, flight, *more):
        following = super().launch_next(flight, *more)
        self.early += following is not None
        self.handed_over += following is not None and following.cycle is not flight.cycle
        return following


def opened(fast: bool, policy: Policy | None = None) -> tuple[Batch, TorchModel, Overlaps | None]:
    target = TorchModel(build("llama", num_hidden_layers=2).to(DEVICE))
    decoder = GpuDecoder(target.model, target.anatomy.layers, target.anatomy.windows)
    target.forward_pass.decoder = decoder if fast else None
    head = eagle(target, IDS, features=(0, 1))
    head.slots.net.to(DEVICE)
    head.slots._kernel, head.vocabulary.ids = None, head.vocabulary.ids.to(DEVICE)
    parts = {"none": NoDrafter(VOCAB), "eagle": head}
    runner = Overlaps(target, decoder) if fast else None
    rule = {name: rules.get(name)() for name in ("greedy", "coupled", "block")}
    batch = Batch(target, parts.__getitem__, rule.__getitem__, policy or Always(2), Limits(), runner=runner)
    return batch, target, runner


def job(batch: Batch, n: int, plan: DecodingPlan, tokens: int, ends: frozenset[int] = frozenset()) -> Job:
    sampling = Sampling(temperature=0 if plan.rule == "greedy" else 0.9, seed=n)
    asked = Job(Request(PROMPTS[n], sampling, tokens, ends), plan)
    batch.check(asked)
    batch.add(asked)
    return asked


def finish(batch: Batch, target: TorchModel) -> None:
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
    assert not batch.failures


@pytest.mark.parametrize(
    "plan",
    [
        DecodingPlan("eagle", "block", 2),
        pytest.param(DecodingPlan("none", "coupled", 0), marks=pytest.mark.slow),
        pytest.param(DecodingPlan("eagle", "greedy", None), marks=pytest.mark.slow),
        pytest.param(DecodingPlan("eagle", "coupled", 3, Shape(nodes=8, width=6)), marks=pytest.mark.slow),
    ],
)
def test_rows_that_end_come_or_go_while_a_cycle_is_under_way_say_what_they_say_alone(plan):
    tokens = 9 if plan.shape else 7  # enough cycles to overlap: trees emit more tokens in each
    batch, target, _ = opened(fast=False)
    alone = [job(batch, n, plan, tokens) for n in range(3)]
    finish(batch, target)
    said = [answer.row.output for answer in alone]
    ends = frozenset({said[0][3]})  # the first row stops early; the device does not know of it
    stop = said[0].index(said[0][3]) + 1
    batch, target, runner = opened(fast=True)
    stopped, cancelled = job(batch, 0, plan, tokens, ends), job(batch, 1, plan, tokens)
    with torch.inference_mode():
        for _ in range(3):
            batch.step()
        late = job(batch, 2, plan, tokens)
        batch.step()
        batch.step()
        cancelled.cancel()
    finish(batch, target)
    assert runner.early > 3, "no cycle overlapped with another"
    assert runner.late or plan.shape, "rows of chains got their tokens after every cycle"
    assert stopped.result().token_ids == said[0][:stop]
    assert stopped.result().finish_reason == "stop"
    assert late.result().token_ids == said[2]
    kept = cancelled.result().token_ids
    assert kept == said[1][: len(kept)]
    for answer in (stopped, cancelled, late):
        assert answer.stats.emitted == len(answer.row.output), "what the device did after the end counts nowhere"


def test_a_row_that_has_ended_never_writes_beyond_its_places_of_the_cache(monkeypatch):
    monkeypatch.setattr(tensors, "AHEAD", 4)
    monkeypatch.setattr(tensors, "SPARE", 0)
    plan, long = DecodingPlan("none", "greedy", 0), [n % VOCAB for n in range(59)]
    batch, target, runner = opened(fast=True)
    with torch.inference_mode():
        first = Job(Request(long, Sampling(0), 40, frozenset(range(VOCAB))), plan)  # any token ends it
        second = Job(Request(PROMPTS[0], Sampling(0), 30), plan)
        for each in (first, second):
            batch.check(each)
            batch.add(each)
        while batch.step():
            for cycle in runner.captured:
                assert int(cycle._inputs.control.start.max()) <= 80, "the device does not know the end"
    assert first.result().finish_reason == "stop"
    assert runner.early > 3, "no cycle overlapped with another"
    batch, target, _ = opened(fast=False)
    alone = job(batch, 0, plan, 30)
    finish(batch, target)
    assert second.result().token_ids == alone.result().token_ids


class Changing(Always):
    """Another depth after every third decision."""

    calls = 0

    def choose(self, rows, menu, ready=None):
        self.calls += 1
        return DraftSize((3, 1, 2, 0)[self.calls // 3 % 4]).budget


@pytest.mark.parametrize("rule", ["coupled", pytest.param("greedy", marks=pytest.mark.slow)])
def test_a_cycle_of_another_size_is_launched_before_the_last_record_is_read(rule, monkeypatch):
    monkeypatch.setattr(graph_cache, "MIN_CAPTURE", 0.0)  # no larger cycle serves instead
    monkeypatch.setattr(graph_cache.GraphCache, "_capture_time", lambda *_: 0.0)
    plan, lengths = DecodingPlan("eagle", rule, None), (36, 22)
    said = []
    for fast in (False, True):
        batch, target, runner = opened(fast, Changing(2))
        jobs = [job(batch, n, plan, tokens) for n, tokens in enumerate(lengths)]
        finish(batch, target)
        said.append([asked.row.output for asked in jobs])
    assert runner.handed_over > 1, "no cycle followed one of another size"
    assert {cycle.key.depth for cycle in runner.captured} == {0, 1, 2, 3}
    assert said[0] == said[1]


class Remembering(Adaptive):
    """Notes what it learnt from cycles that were committed later."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt: list[list[int]] = []

    def observe_captured(self, rows, results):
        super().observe_captured(rows, results)
        if isinstance(results, ChainResults):
            self.learnt.append((results.accepted + 1).tolist())


def test_the_engines_own_policy_learns_from_cycles_that_are_committed_later():
    plan, policy = DecodingPlan("eagle", "greedy", None), Remembering()
    batch, target, _ = opened(fast=False)
    alone = [job(batch, n, plan, 12) for n in range(2)]
    finish(batch, target)
    batch, target, runner = opened(fast=True, policy=policy)
    jobs = [job(batch, n, plan, 12) for n in range(2)]
    finish(batch, target)
    assert [each.result().token_ids for each in jobs] == [each.row.output for each in alone]
    assert [each.row.ahead for each in jobs] == [0] * 2
    assert runner.late > 0
    assert policy.learnt, "some of the cycles drafted"


@pytest.mark.slow
def test_a_cycle_without_a_law_is_repeated_and_the_one_after_it_forgotten(monkeypatch):
    plan, read, unsound = DecodingPlan("eagle", "coupled", 2), PendingRecord.read, iter([0, 0, 1, 0, 0, 1])

    def lawless(self, rows, columns):
        record = read(self, rows, columns)
        if columns > 1 and next(unsound, 0):  # a rehearsal reads one number
            record[0][2] = 0
        return record

    outputs = []
    for fast in (False, True):
        batch, target, runner = opened(fast)
        monkeypatch.setattr(PendingRecord, "read", lawless if fast else read)
        jobs = [job(batch, n, plan, 10) for n in range(2)]
        finish(batch, target)
        outputs.append([asked.row.output for asked in jobs])
    assert next(unsound, None) is None, "every planted one was met"
    assert runner.early > 2
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_a_head_reads_prompts_of_a_size_that_it_has_met_by_the_same_graph():
    plan = DecodingPlan("eagle", "coupled", 2)
    batch, target, _ = opened(fast=False)
    alone = [job(batch, n, plan, 4) for n in range(3)]
    finish(batch, target)
    batch, target, runner = opened(fast=True)
    device = runner._device_drafter(batch._drafter("eagle"))
    kept = []
    for _ in range(3):
        jobs = [job(batch, n, plan, 4) for n in range(3)]
        finish(batch, target)
        assert [each.row.output for each in jobs] == [each.row.output for each in alone]
        kept.append(dict(device._reads.graphs))
    assert not kept[0], "it is captured when it is met again"
    assert kept[1]
    assert kept[2] == kept[1]
    device.grow(2 * target.cache.places)  # the head's cache moves
    jobs = [job(batch, n, plan, 4) for n in range(3)]
    finish(batch, target)
    assert [each.row.output for each in jobs] == [each.row.output for each in alone]
    assert not kept[2].items() & device._reads.graphs.items(), "old graphs hold old addresses"


def test_short_drafts_in_a_graph_for_longer_ones_overlap_and_get_a_graph_of_their_own_once_it_pays(monkeypatch):
    short, texts = DecodingPlan("eagle", "greedy", 2), (5, 14)
    batch, target, _ = opened(fast=False)
    alone = [job(batch, n, short, tokens) for n, tokens in enumerate(texts)]
    finish(batch, target)
    batch, target, runner = opened(fast=True)
    for n in range(2):
        job(batch, n, DecodingPlan("eagle", "greedy", 3), 6)
    finish(batch, target)
    monkeypatch.setattr(graph_cache.GraphCache, "_capture_time", lambda *_: 0.0)
    for least, depths in ((1e9, {0, 3}), (0.0, {0, 2, 3})):
        monkeypatch.setattr(graph_cache, "MIN_CAPTURE", least)
        early, before = runner.early, runner.cycles
        said = [job(batch, n, short, tokens) for n, tokens in enumerate(texts)]
        finish(batch, target)
        assert [answer.result().token_ids for answer in said] == [answer.row.output for answer in alone]
        assert {cycle.key.depth for cycle in runner.captured} == depths
        assert runner.cycles - before - (runner.early - early) <= 4, "cycles waited for the host"
        missed = {key.depth for graphs in runner._graphs.values() for key in graphs._missed}
        assert missed <= {0, 2}, "the depth of the graph, which nobody asked for, was missed"
