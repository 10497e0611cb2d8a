"""The contract of a model on Hugging Face architectures: after any history of prefill, score, partial commit and
rollback, the logits of every slot are those of the model's own plain forward over the text that leads there."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from slipstream.models.cache import tensors as cache_module
from slipstream.models.run.torch_model import TorchModel
from tiny import ARCHITECTURES, CONTEXT, ROUNDING, VOCAB, Bench, apart, build, extend, first, make, reference

everyone = pytest.mark.parametrize("kind", ARCHITECTURES)


@everyone
def test_one_row_chains_and_trees(kind: str) -> None:
    bench = Bench.of(kind, features=(0, 2), prefill_chunk=7)
    bench.join(17)
    for count, branching in [(0, 0), (3, 0), (6, 0.7), (1, 0), (8, 0.5), (0, 0), (12, 0.9), (4, 0)]:
        assert bench.cycle([count], branching) <= ROUNDING


@everyone
def test_ragged_rows_that_come_and_go(kind: str) -> None:
    bench = Bench.of(kind, seed=1, features=(1,))
    bench.join(3, 11, 1)
    assert bench.cycle([2, 0, 4], 0) <= ROUNDING
    assert bench.cycle([3, 5, 2], 0.8) <= ROUNDING
    bench.leave(1)
    assert bench.cycle([1, 1], 0) <= ROUNDING
    bench.join(9, 2)
    assert bench.cycle([0, 0, 0, 0], 0) <= ROUNDING
    assert bench.cycle([2, 4, 1, 3], 0.6) <= ROUNDING


@everyone
def test_stop_at_a_layer_and_resume(kind: str) -> None:
    """A draft grown node by node on the first layers alone, then scored from there; and again for the next cycle."""
    bench = Bench.of(kind, seed=2, features=(0, 1))
    bench.join(5, 12)
    for branching in (0.0, 0.7):
        draft = bench.draft([3, 4], branching)
        for size in (0, 1, 4):
            part = first(draft, size)
            expected = reference(bench.plain, bench.rows, part, (1,))[1][1]
            assert apart(bench.model.peek(bench.rows, part, 2), expected) <= ROUNDING
        assert bench.off(draft, bench.model.score(bench.rows, draft)) <= ROUNDING
        bench.commit(draft, bench.verdict(draft))
        bench.model.check_integrity()


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "mixtral"])
def test_a_draft_model_steps_and_catches_up(kind: str) -> None:
    """Peeking at all layers and applying the head is scoring, one token at a time; what never ran is read later."""
    bench = Bench.of(kind, seed=3)
    bench.join(5, 9)
    for _ in range(4):
        chain = bench.draft([3, 2], 0)
        part = make(2, [0, 0, 1], [-1, 0, -1], [int(chain.token[i]) for i in (0, 1, 3)])
        for draft in (make(2, [], [], []), part):
            hidden = bench.model.peek(bench.rows, draft, bench.model.layers)
            logits, _ = reference(bench.plain, bench.rows, draft)
            assert apart(bench.model.logits(hidden), logits) <= ROUNDING
        verdict = bench.verdict(chain)
        bench.model.commit(bench.rows, verdict, chain)
        extend(bench.rows, chain, verdict)
        bench.model.check_integrity()
    assert bench.cycle([2, 2], 0) <= ROUNDING


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@everyone
def test_on_the_gpu(kind: str) -> None:
    bench = Bench.of(kind, seed=8, device="cuda", features=(1,), prefill_chunk=7)
    bench.join(17, 3)
    for counts, branching in [([0, 0], 0), ([3, 5], 0), ([6, 4], 0.7)]:
        assert bench.cycle(counts, branching) <= ROUNDING
    bench.model.peek(bench.rows, bench.draft([1, 1], 0), 2)
    assert bench.cycle([2, 2], 0) <= ROUNDING


def test_random_histories() -> None:
    bench = Bench.of("mistral", seed=4, prefill_chunk=5)
    bench.join(20)
    for _ in range(30):
        choice = bench.rng.random()
        if choice < 0.15 and len(bench.rows) < 5:
            bench.join(bench.rng.randrange(1, 20))
        elif choice < 0.25 and len(bench.rows) > 1:
            bench.leave(bench.rng.randrange(len(bench.rows)))
        elif choice < 0.4:
            bench.model.prefill(bench.rows, bench.rng.randrange(1, 6))
        elif choice < 0.5:  # scored, and never committed
            bench.model.score(bench.rows, bench.draft([bench.rng.randrange(4) for _ in bench.rows], 0.5))
        else:
            assert bench.cycle([bench.rng.randrange(6) for _ in bench.rows], bench.rng.choice([0, 0.6])) <= ROUNDING


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_growth_across_buckets(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SMALLEST", 2)
    bench = Bench.of(kind, seed=5, prefill_chunk=40)
    bench.join(3)
    assert bench.cycle([2], 0) <= ROUNDING
    bench.join(70, 2, 1)
    for _ in range(3):
        assert bench.cycle([4, 3, 0, 2], 0.5) <= ROUNDING


def test_rows_far_apart_are_gathered() -> None:
    bench = Bench.of("llama", seed=6)
    bench.join(*range(1, 9))
    assert bench.cycle([0] * 8, 0) <= ROUNDING
    for _ in range(6):
        bench.leave(1)
    assert bench.cycle([3, 2], 0.5) <= ROUNDING


def test_trees_deeper_than_the_window() -> None:
    """Windows reckon in positions: a cousin's place does not push a grandparent out of sight."""
    bench = Bench.of("mistral", seed=7, config={"sliding_window": 3})
    bench.join(6, 2)
    for _ in range(3):
        assert bench.cycle([12, 9], 0.3) <= ROUNDING


def test_prefill_leaves_the_last_token() -> None:
    bench = Bench.of("llama")
    bench.join(10, 1, 4)
    assert bench.model.prefill(bench.rows, 6) == [6, 0, 3]
    assert bench.model.prefill(bench.rows, 6) == [3, 0, 0]
    assert bench.model.prefill(bench.rows, 6) == [0, 0, 0]
    assert bench.cycle([2, 2, 0], 0) <= ROUNDING


def test_a_shortened_row_rolls_back() -> None:
    bench = Bench.of("mistral")
    bench.join(30)
    assert bench.cycle([4], 0) <= ROUNDING
    del bench.rows[0].tokens[21:]
    assert bench.cycle([3], 0) <= ROUNDING


def test_a_changed_draft_is_not_resumed() -> None:
    bench = Bench.of("llama")
    bench.join(4)
    bench.model.peek(bench.rows, make(1, [0, 0], [-1, 0], [5, 6]), 1)
    draft = make(1, [0, 0, 0], [-1, 0, 0], [5, 7, 6])
    assert bench.off(draft, bench.model.score(bench.rows, draft)) <= ROUNDING


def test_two_wrappers_share_one_model() -> None:
    plain = build("llama")
    shared = copy.deepcopy(plain)
    first, second = (Bench(plain, TorchModel(shared), random.Random(seed)) for seed in (0, 1))
    for bench in (first, second):
        bench.join(6)
    for _ in range(3):
        for bench in (first, second):
            assert bench.cycle([3], 0.5) <= ROUNDING


def test_declarations() -> None:
    model = TorchModel(build("gpt2"), context=50)
    assert (model.vocab, model.context, model.layers, model.dtype) == (VOCAB, 50, 3, torch.float32)
    assert TorchModel(build("llama")).context == CONTEXT


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"features": (3,)}, "features names layer 3; the model has layers 0 to 2"),
        ({"context": 201}, "context is 201; the model takes 1 to 200"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0; it must be 1 or more"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TorchModel(build("llama"), **options)


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("mamba", {}, "cannot be rolled back"),
        ("rwkv", {"attention_hidden_size": 32}, "cannot be rolled back"),
        ("qwen3_next", {"num_experts": 2}, "layers of kind linear_attention"),
        ("llama4_text", {}, "layers of kind chunked_attention"),
        ("bloom", {"n_head": 4}, "ALiBi"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("falcon", {}, "bypasses the attention interface"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic position"),
    ],
)
def test_refusals(kind: str, more: dict[str, Any], sentence: str) -> None:
    model = build(kind, **more)
    own = model.config._attn_implementation
    with pytest.raises(ValueError, match=f"^{kind} .* is refused: .*{sentence}"):
        TorchModel(model)
    assert model.config._attn_implementation == own


def test_refuses_an_encoder_decoder() -> None:
    config = T5Config(vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match=r"^t5 .* is refused: it is an encoder-decoder"):
        TorchModel(T5ForConditionalGeneration(config))


def test_refuses_quantised_weights() -> None:
    model = build("llama")
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match="quantised already"):
        TorchModel(model)


def test_refuses_an_attention_it_cannot_reproduce() -> None:
    """A model that adds something of its own when it runs eagerly is caught by its numbers."""
    model = build("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        out, weights = forward(*args, **kwargs)
        return (out * 3 if model.config._attn_implementation == "eager" else out), weights

    attention.forward = doubled
    with pytest.raises(ValueError, match="its logits change"):
        TorchModel(model)


def test_the_wrapped_model_says_so() -> None:
    model = build("llama")
    TorchModel(model)
    with pytest.raises(RuntimeError, match="wrapped by slipstream"):
        model(torch.tensor([[1, 2]]))
    model.set_attn_implementation("sdpa")
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, VOCAB)
