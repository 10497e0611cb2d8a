"""A policy may stop everyone to capture a first size that drafts, but not for long."""

from __future__ import annotations

import pytest
import torch

from slipstream.engines.native.captured.capture_budget import COUNTED, GRANT, SHARE, CaptureBudget


def test_some_whenever_there_are_more_rows_than_ever_then_a_share_of_all_time():
    now = [0.0]
    allowance = CaptureBudget(lambda: now[0])
    assert allowance.left(1)
    with allowance.runs():
        now[0] += 1.0
        for _ in range(2):
            with allowance.captures():
                now[0] += COUNTED
        with allowance.captures(counted=False):
            now[0] += 5.0
    assert (allowance.running, allowance.spent) == (1.0, 2 * COUNTED)
    assert not allowance.left(1)
    assert allowance.left(8)
    assert not allowance.left(8, 2 * GRANT - 2 * COUNTED + 0.1)
    assert not allowance.left(4, 2 * GRANT - 2 * COUNTED + 0.1), "those who leave bring no more"
    with allowance.runs():
        now[0] += 0.1 / SHARE
    assert allowance.left(1, 2 * GRANT - 2 * COUNTED + 0.1)


def test_a_capture_that_compiles_does_not_keep_others_from_being_captured():
    now = [0.0]
    allowance = CaptureBudget(lambda: now[0])
    assert allowance.left(8)
    with allowance.captures():
        now[0] += 12.0
    assert allowance.spent == COUNTED
    assert allowance.left(8), "the next one has its kernels"


@pytest.mark.slow
def test_what_is_there_is_used_where_nothing_may_be_captured(monkeypatch):
    pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")
    from slipstream.core.device import DraftSize
    from slipstream.core.rules import rules
    from slipstream.core.sampling import Sampling
    from slipstream.core.types import Request, Row
    from slipstream.core.verify.match import Greedy
    from slipstream.drafters.per_row import PerRow, RowDrafter
    from slipstream.engines.job import DecodingPlan, Job
    from slipstream.engines.native.batch import Batch
    from slipstream.engines.native.captured.runner import CapturedRunner
    from slipstream.engines.native.captured.sizes import DEPTHS, BatchShape
    from slipstream.engines.native.scheduler import Limits
    from slipstream.models.run.gpu.decoder import GpuDecoder
    from slipstream.models.run.torch_model import TorchModel
    from slipstream.plan.policy.policies import Adaptive
    from tiny import VOCAB, build

    class Nines(RowDrafter):
        def guess(self, tokens, depth):
            return [9] * depth

    class Always(PerRow):
        def new(self, row):
            return Nines()

    model = build("llama").to("cuda" if torch.cuda.is_available() else "cpu")
    target = TorchModel(model)
    target.forward_pass.decoder = GpuDecoder(model, target.anatomy.layers, target.anatomy.windows)
    drafter, runner = Always(VOCAB), CapturedRunner(target, target.decoder)

    def decode(wanted: int | None) -> list[int]:
        parts = {"ngram": drafter, "none": drafter}
        batch = Batch(target, parts.__getitem__, lambda name: rules.get(name)(), Adaptive(), Limits(), runner=runner)
        job = Job(Request([5, 6, 7, 5, 6], Sampling(0, seed=1), 4), DecodingPlan("ngram", "greedy", wanted))
        batch.add(job)
        with torch.inference_mode():
            while batch.step():
                pass
        assert not batch.failures
        return job.row.output

    def depths() -> set[int]:
        return {cycle.key.depth for cycle in runner.captured}

    runner.capture_budget.spent = 1e9
    monkeypatch.setattr("slipstream.engines.native.captured.graph_cache.MIN_CAPTURE", 1e9)  # cycles are slow here
    plainly = decode(None)
    assert depths() == {0}, "the policy's wish is not captured"
    assert decode(1) == plainly
    assert depths() == {0, 1}, "a user's is"
    decode(None)
    assert depths() == {0, 1}
    stock, sizes = runner._graphs[id(drafter), None], [DraftSize(depth) for depth in DEPTHS]
    common = BatchShape.of([Row(Request([5, 6, 7, 5, 6], Sampling(0), 4))])
    offered = {
        offer.size.depth: offer.captured
        for offer in stock.menu(common, Greedy.device_rule, sizes, lambda _: False)
        if not offer.barred
    }
    assert offered == {0: True, 1: True}
    offered = {
        offer.size.depth: offer.captured for offer in stock.menu(common, Greedy.device_rule, sizes, lambda _: True)
    }
    assert offered == {depth: depth < 2 for depth in DEPTHS}
