"""Captured cycles of a decoder with cross-attention, under the rules of a transcript: the tokens and log-probabilities
of the ordinary path. On a GPU, or under Triton's interpreter without the graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

import whispers
from slipstream.core.interfaces import Policy
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.captured.runner import CapturedRunner
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.speech.timestamp_rules import TranscriptRules
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.policies import Adaptive, Fixed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, END, FIRST, TOKENS = 40, 20, 26, 5
TIMES = TranscriptRules(2, END, (3, 21, 22), (END,), FIRST, latest_start=4)
TEXT = TranscriptRules(2, END, (3, 21, 22, *range(FIRST, VOCAB)), (END,), None)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_sizes, "LEAST", 1)


def model(seed: int, captured: bool) -> TorchModel:
    target = TorchModel(whispers.build(seed, vocab_size=VOCAB, decoder_layers=1).to(DEVICE), kernels=captured)
    if captured and DEVICE == "cpu":
        whispers.run_captured(target)
    return target


def decoded(
    captured: bool,
    plan: DecodingPlan,
    sampling: Sampling,
    processors: list[TranscriptRules],
    policy: Policy | None = None,
) -> tuple[list[Job], CapturedRunner | None]:
    target = model(0, captured)
    parts = {"none": NoDrafter(VOCAB), "ngram": NGram(VOCAB)}
    if plan.drafter == "draft_model":
        parts["draft_model"] = DraftModel(model(0 if plan.depth == 3 else 1, captured), VOCAB)
    runner = CapturedRunner(target, target.decoder) if captured else None
    policy = policy or Fixed(2)
    batch = Batch(target, parts.__getitem__, lambda name: rules.get(name)(), policy, Limits(), runner=runner)
    jobs = []
    for n, processor in enumerate(processors):
        own = replace(sampling, seed=n)
        request = Request(
            [5, 6], own, TOKENS + n, frozenset({END}), processor=processor, condition=whispers.condition(n)
        )
        jobs.append(Job(request, plan, logprobs=0))
        batch.check(jobs[-1])
        batch.add(jobs[-1])
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
    assert not batch.failures
    return jobs, runner


@pytest.mark.parametrize(
    ("drafter", "rule", "depth", "sampling", "processor"),
    [("draft_model", "greedy", 2, Sampling(0), TIMES), ("none", "token", 0, Sampling(0.9), TIMES),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in [
         ("draft_model", "greedy", 3, Sampling(0), TEXT), ("draft_model", "block", 2, Sampling(0.8), TIMES),
         ("draft_model", "coupled", 2, Sampling(0.8), TEXT), ("ngram", "greedy", 3, Sampling(0), TIMES)])],
)  # fmt: skip
def test_captured_cycles_emit_what_the_ordinary_path_emits(drafter, rule, depth, sampling, processor):
    plan = DecodingPlan(drafter, rule, depth)
    expected, _ = decoded(False, plan, sampling, [processor] * 2)
    jobs, runner = decoded(True, plan, sampling, [processor] * 2)
    assert runner.cycles > 1, "the ordinary path ran"
    assert [job.row.output for job in jobs] == [job.row.output for job in expected]
    for job, other in zip(jobs, expected, strict=True):
        ours, theirs = (
            [entry.logprob for item in each.undecoded() for entry in item.logprobs] for each in (job, other)
        )
        assert len(ours) == len(job.row.output)
        assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.slow
def test_the_policy_chooses_among_captured_sizes():
    plan = DecodingPlan("draft_model", "greedy", None)
    expected, _ = decoded(False, plan, Sampling(0), [TIMES])
    jobs, runner = decoded(True, plan, Sampling(0), [TIMES], Adaptive(AdaptiveConfig(max_depth=2)))
    assert jobs[0].row.output == expected[0].row.output
    assert runner.cycles > 1, "the ordinary path ran"


def test_rows_with_different_rules_take_the_ordinary_path():
    plan = DecodingPlan("none", "greedy", 0)
    expected, _ = decoded(False, plan, Sampling(0), [TIMES, TEXT])
    jobs, _ = decoded(True, plan, Sampling(0), [TIMES, TEXT])
    assert [job.row.output for job in jobs] == [job.row.output for job in expected]
