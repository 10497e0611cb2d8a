"""Whole cycles on the device equal the batch's own cycles, token for token: on a GPU, or under Triton's interpreter."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from heads import eagle
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.express import Express
from slipstream.engines.native.job import Course, Job
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu import draw
from slipstream.models import gpu_decoder
from slipstream.models.decoder import _agrees
from slipstream.models.gpu_decoder import GpuDecoder
from slipstream.models.torch_model import TorchModel
from slipstream.plan.policy import Adaptive
from tiny import VOCAB, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = ((3, 6), (12, 4)) if DEVICE == "cpu" else ((3, 9), (30, 34), (9, 22))
IDS = sorted(random.Random(3).sample(range(VOCAB), 60))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that find nothing to do cost the interpreter as much as others."""
    if DEVICE == "cpu":
        monkeypatch.setattr(gpu_decoder, "LEAST", 1)
        monkeypatch.setattr(draw, "BLOCK", 128)


def outputs(fast: bool, course: Course, warm: float) -> tuple[list[list[int]], int]:
    model = build("llama").to(DEVICE)
    target = TorchModel(model)
    target.decoder = GpuDecoder(model, target.anatomy.layers, target.anatomy.windows) if fast else None
    head = eagle(target, IDS)
    head.slots.net.to(DEVICE)
    head.slots._call, head.vocabulary.ids = None, head.vocabulary.ids.to(DEVICE)
    parts = {"none": NoDrafter(VOCAB), "eagle": head}
    express = Express(target, target.decoder) if fast else None
    batch = Batch(target, parts.__getitem__, lambda name: rules.get(name)(), Adaptive(4), Limits(), express=express)
    jobs, rng = [], random.Random(1)
    for n, (length, tokens) in enumerate(PROMPTS):
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        jobs.append(Job(Request(prompt, Sampling(temperature=warm, seed=n), tokens), course))
        batch.check(jobs[-1])
        batch.add(jobs[-1])
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
    assert not batch.failures
    return [job.row.output for job in jobs], express.cycles if express else 0


@pytest.mark.parametrize(
    ("drafter", "rule", "depth", "warm"),
    [("none", "block", 0, 0.8), ("eagle", "greedy", 2, 0.0), ("eagle", "coupled", 2, 1.0), ("eagle", "token", 2, 0.8),
     ("eagle", "block", 3, 0.8)],
)  # fmt: skip
def test_captured_cycles_say_what_the_others_say(drafter, rule, depth, warm):
    course = Course(drafter, rule, depth)
    wanted, _ = outputs(fast=False, course=course, warm=warm)
    mine, cycles = outputs(fast=True, course=course, warm=warm)
    assert mine == wanted
    assert cycles, "no cycle was a whole one"


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_passes_of_the_common_kind_agree_with_the_modules(kind):
    model = build(kind).to(DEVICE)
    layers, windows = TorchModel(model).anatomy.layers, dict.fromkeys(range(3))
    with torch.inference_mode():
        assert _agrees(GpuDecoder(model, layers, windows), model, layers)
        model.base_model.layers[1].mlp.act_fn = torch.nn.GELU()
        assert not _agrees(GpuDecoder(model, layers, windows), model, layers)


def test_windows_and_other_kinds_are_left_to_the_modules():
    model = build("llama")
    layers = TorchModel(model).anatomy.layers
    with pytest.raises(TypeError, match="window"):
        GpuDecoder(model, layers, {0: None, 1: 8, 2: None})
    with pytest.raises((TypeError, AttributeError)):
        GpuDecoder(build("gpt2"), build("gpt2").transformer.h, dict.fromkeys(range(3)))


def test_weights_are_laid_together_once():
    model = build("llama").to(DEVICE)
    layers, windows = TorchModel(model).anatomy.layers, dict.fromkeys(range(3))
    before = model.base_model.layers[0].self_attn.k_proj.weight.clone()
    one, other = (GpuDecoder(model, layers, windows).net.blocks[0].qkv for _ in range(2))
    assert one.data_ptr() == other.data_ptr()
    assert one.shape == other.shape
    assert torch.equal(model.base_model.layers[0].self_attn.k_proj.weight, before)
    assert model.base_model.layers[0].self_attn.k_proj.weight.data_ptr() == one[32:].data_ptr()
