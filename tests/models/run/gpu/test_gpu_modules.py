"""Other models as a GPU runs them, their own modules over our attention: on one, or under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.models.run.decoder_choice import captured_modules
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.gpu import passes as gpu_passes
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.gpu.modules import GpuModules, record
from tiny import ARCHITECTURES, ROUNDING, Bench, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXPERTS = ["mixtral", "gpt_oss", "qwen3_moe"]  # in float32 these ask the device which expert to run
KINDS = sorted(ARCHITECTURES.keys() - EXPERTS) if DEVICE == "cuda" else ["gemma2", "gpt_oss", "olmo2"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that find nothing to do cost the interpreter as much as others."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pass_sizes, "LEAST", 1)
    monkeypatch.setattr(gpu_passes, "ONCE", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_and_trees_of_several_rows_equal_the_plain_model(kind):
    """Texts longer than a window, of models with windows, capped scores, sinks, experts and other positions."""
    bench = Bench.of(kind, device=DEVICE, features=(1,))
    with torch.inference_mode():
        bench.model.forward_pass.decoder = modules = record(bench.model.model, bench.model.anatomy, range(5))[0]
    bench.join(13, 3)
    offs = [bench.cycle([2, 1], 0.0), bench.cycle([4, 3], 0.6)]
    assert isinstance(modules, GpuModules)
    assert modules.captures > 1, "all of it went the other way"
    assert max(offs) <= ROUNDING


@pytest.mark.slow
def test_prompts_of_a_small_model_are_captured_when_such_a_size_is_met_again(monkeypatch):
    monkeypatch.setattr(gpu_passes, "ONCE", 1)
    monkeypatch.setattr(pass_sizes, "SIZES", (1, 2, 4))
    monkeypatch.setattr(pass_sizes, "LARGER", (8, 12))
    monkeypatch.setattr(gpu_passes, "MOST_TOKENS", 12)
    bench = Bench.of("llama", device=DEVICE)
    anatomy = bench.model.anatomy
    bench.model.forward_pass.decoder = decoder = GpuDecoder(bench.model.model, anatomy.layers, anatomy.windows)
    assert (decoder.largest, pass_sizes.largest_of(10**12)) == (12, 4), "of a large model only passes of few tokens"
    assert [pass_sizes.size_of(n, 12) for n in (3, 6, 9, 12, 13, 17)] == [4, 8, 12, 12, 16, 32]
    captures = []
    for length in (12, 11, 10, 7, 8, 16, 16):
        bench.join(length)
        bench.model.prefill(bench.rows, 100)
        captures.append(decoder.captures)
        assert bench.cycle([2], 0.0) <= ROUNDING
        bench.leave(0)
    assert captures[0] == 0 < captures[1], "the second of a size"
    assert sum(key[0] > 4 for key in decoder._graphs) == 1, "and not all of them"


def test_a_captured_pass_serves_for_somewhat_fewer_tokens_and_other_rows(monkeypatch):
    monkeypatch.setattr(gpu_passes, "ONCE", 1)
    monkeypatch.setattr(pass_sizes, "SIZES", (1, 2, 4))
    monkeypatch.setattr(pass_sizes, "LARGER", (10, 12, 14, 16))
    monkeypatch.setattr(gpu_passes, "KEPT", 4)
    bench = Bench.of("llama", device=DEVICE)
    anatomy = bench.model.anatomy
    bench.model.forward_pass.decoder = decoder = GpuDecoder(bench.model.model, anatomy.layers, anatomy.windows)
    sizes = []
    for lengths in ((2, 2), (15,), (15,), (12,), (11, 3), (12,)):  # the last token of each is read later
        for length in lengths:
            bench.join(length)
        bench.model.prefill(bench.rows, 100)
        sizes.append({key[0] for key in decoder._graphs if key[0] > 4})
        assert bench.cycle([2] * len(lengths), 0.0) <= ROUNDING
        for _ in lengths:
            bench.leave(0)
    assert [14 in own for own in sizes] == [False, False, True, True, True, True]
    assert not any(key[0] == 12 for key in (*decoder._met, *decoder._graphs)), (
        "14 served for 11 tokens, and for two rows"
    )


def test_what_cannot_be_recorded_runs_as_it_is():
    model = build("gpt2").to(DEVICE)
    anatomy = Bench.of("gpt2", device=DEVICE).model.anatomy

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    model.transformer.h[0].forward = fail
    modules, how = captured_modules(model, anatomy)
    assert modules is None
    assert "not permitted when stream is capturing)" in how
    assert "\n" not in how


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.slow
def test_parts_that_are_compiled_say_the_same_and_are_given_back():
    bench = Bench.of("gemma2", device=DEVICE)
    own = bench.model.anatomy.layers[0].mlp.forward
    with torch.inference_mode():
        bench.model.forward_pass.decoder, wanted, mine = record(
            bench.model.model, bench.model.anatomy, range(5), fuse=True
        )
    torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)
    assert bench.model.anatomy.layers[0].mlp.forward == own
    bench.join(13, 3)
    assert bench.cycle([2, 1], 0.0) <= ROUNDING


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="there is no CUDA device")
@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_that_are_asked_for_run_as_they_are_and_leave_nothing_broken(kind):
    bench = Bench.of(kind, device=DEVICE)
    assert bench.model.decoder is None
    bench.join(13, 3)
    assert bench.cycle([2, 1], 0.0) <= ROUNDING
    other = Bench.of("gemma2", device=DEVICE)
    assert isinstance(other.model.decoder, GpuModules)
    other.join(13, 3)
    assert other.cycle([2, 1], 0.0) <= ROUNDING


def test_a_tree_deeper_than_a_window_goes_the_other_way():
    bench = Bench.of("gemma2", device=DEVICE)
    with torch.inference_mode():
        bench.model.forward_pass.decoder = modules = record(bench.model.model, bench.model.anatomy, range(5))[0]
    assert not modules.branches(16)
    bench.join(3)
    deep = bench.draft([12], 0.3)
    assert bench.off(deep, bench.model.score(bench.rows, deep)) <= ROUNDING
