"""Drafters without a device form: while they draft nothing, their rows have captured cycles."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.core.interfaces import Needs
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget, Request
from slipstream.drafters.ngram import NGram
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.captured.runner import CapturedRunner
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu import sample as draw
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 12


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(pass_sizes, "LEAST", 1)
        monkeypatch.setattr(draw, "BLOCK", 128)


class HostNGram(NGram):
    """Its own `propose` keeps it from the device form of `NGram`."""

    def propose(self, rows, budget, noise):
        return super().propose(rows, budget, noise)


class Sometimes(Fixed):
    """Drafts two tokens in every fourth cycle. Keeps what it was asked and told."""

    def __init__(self) -> None:
        super().__init__(2)
        self.asked: list[int] = []
        self.priced: list[tuple[float, int]] = []

    def budget(self, rows):
        self.asked.append(len(rows))
        return [Budget(2 if len(self.asked) % 4 == 0 else 0)] * len(rows)

    def price(self, drafting, scoring, tokens):
        assert scoring > 0
        self.priced.append((drafting, tokens))


def decoded(fast: bool, rule: str, how: Sampling, depth: int | None = None, needs: Needs | None = None):
    target = TorchModel(build("llama", num_hidden_layers=2).to(DEVICE))
    target.forward_pass.decoder = None
    if fast:
        target.forward_pass.decoder = GpuDecoder(target.model, target.anatomy.layers, target.anatomy.windows)
    drafter, policy = HostNGram(VOCAB), Sometimes()
    drafter.needs = needs or Needs()
    runner = CapturedRunner(target, target.decoder) if fast else None
    batch = Batch(target, lambda _: drafter, lambda name: rules.get(name)(), policy, Limits(), runner=runner)
    jobs = [Job(Request([5, 6, 7, 5, 6, n], how, TOKENS), DecodingPlan("ngram", rule, depth)) for n in (7, 8)]
    for job in jobs:
        batch.check(job)
        batch.add(job)
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
    assert not batch.failures
    return jobs, policy, runner.cycles if runner else 0


@pytest.mark.parametrize(("rule", "how"), [("greedy", Sampling(0)), ("block", Sampling(0.8, seed=3))])
def test_cycles_without_a_draft_are_captured_and_the_others_are_not(rule, how):
    wanted, _, _ = decoded(False, rule, how)
    jobs, policy, cycles = decoded(True, rule, how)
    assert [job.row.output for job in jobs] == [job.row.output for job in wanted]
    drafting = sum(count % 4 == 0 for count in range(1, len(policy.asked) + 1))
    assert drafting, "nothing was drafted, so the paths did not mix"
    assert cycles > 2 * drafting, "cycles without a draft were not captured"
    longest = max(job.stats.cycles for job in jobs)
    assert len(policy.asked) <= longest + 1, "the policy is asked once for each cycle"
    plain = [tokens for drafting, tokens in policy.priced if not drafting]
    assert len(plain) >= cycles / 2, "the policy is told what captured cycles cost"
    assert max(plain) <= 2, "one token of each row"


@pytest.mark.parametrize("case", [{"depth": 2}, {"needs": Needs((0,))}])
def test_a_fixed_depth_and_drafters_that_need_hidden_states_take_the_ordinary_path(case):
    wanted, _, _ = decoded(False, "greedy", Sampling(0), **case)
    jobs, _, cycles = decoded(True, "greedy", Sampling(0), **case)
    assert [job.row.output for job in jobs] == [job.row.output for job in wanted]
    assert cycles == 0
