"""A tiny target and a tiny draft model, decoded by captured cycles or by the ordinary loop.

Captured cycles run on a GPU, or under Triton's interpreter without the graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.captured.runner import CapturedRunner
from slipstream.engines.native.planning import law_sampling
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu import sample
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = ([3, 9, 27, 3, 9], [50, 8, 8, 50])


def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: several blocks of a small vocabulary, and captured passes over one token."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pass_sizes, "LEAST", 1)
        monkeypatch.setattr(sample, "BLOCK", 128)


def tiny_model(layers: int, captured: bool, weights: TorchModel | None = None) -> TorchModel:
    model = build("llama", num_hidden_layers=layers).to(DEVICE)
    if weights is not None:
        model.load_state_dict(weights.model.state_dict(), strict=False)
        model.model.layers[0].mlp.down_proj.weight.data *= 1.1
    target = TorchModel(model)
    anatomy = target.anatomy
    target.forward_pass.decoder = GpuDecoder(model, anatomy.layers, anatomy.windows) if captured else None
    return target


def decoded(
    captured: bool, plan: DecodingPlan, sampling: Sampling, tokens: Sequence[int], logprobs: Sequence[int | None]
) -> tuple[list[Job], int]:
    """The jobs of some requests, and how many captured cycles there were."""
    target = tiny_model(2, captured)
    drafters: dict[str, Drafter] = {"none": NoDrafter(VOCAB), "ngram": NGram(VOCAB)}
    if plan.drafter == "draft_model":
        drafters["draft_model"] = DraftModel(tiny_model(1, captured, target), VOCAB)
    runner = CapturedRunner(target, target.decoder) if captured else None
    rule = rules.make(plan.rule)  # one object: it is part of the key of every captured cycle
    batch = Batch(target, drafters.__getitem__, lambda name: rule, Fixed(2), Limits(), runner=runner)
    jobs, own = [], law_sampling(plan.rule, sampling)
    for n, (prompt, count, top) in enumerate(zip(PROMPTS, tokens, logprobs, strict=False)):
        jobs.append(Job(Request(prompt, replace(own, seed=n), count), plan, logprobs=top))
        batch.check(jobs[-1])
        batch.add(jobs[-1])
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
            if isinstance(draft := drafters.get("draft_model"), DraftModel):
                draft.model.check_integrity()
    assert not batch.failures
    return jobs, runner.cycles if runner else 0
