"""Models give the same logits on packed linear layers, with half the bytes where the weights allow it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.models.weights import linears
from slipstream.models.weights.int8_linear import RoundedLinear, round_linears
from slipstream.models.weights.linears import PackedLinear, pack_linears

needs_kernel = pytest.mark.skipif(not cpu_linear.available(), reason=cpu_linear.status())
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97}
MODELS = {
    "LlamaForCausalLM": {**SMALL, "intermediate_size": 56, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "Gemma2ForCausalLM": {**SMALL, "intermediate_size": 56, "num_key_value_heads": 2, "head_dim": 8},
    "Qwen2ForCausalLM": {**SMALL, "intermediate_size": 56, "num_key_value_heads": 2},
    "Qwen3MoeForCausalLM": {**SMALL, "num_key_value_heads": 2, "num_experts": 2, "num_experts_per_tok": 2},
    "GPTNeoXForCausalLM": {**SMALL, "intermediate_size": 56},
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97},
}


def make(name: str, halved: bool = True) -> Any:
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**MODELS[name])).eval()
    return model.to(torch.bfloat16).float() if halved else model


@needs_kernel
@pytest.mark.parametrize("halved", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_model(name: str, halved: bool) -> None:
    model = make(name, halved)
    tokens = torch.arange(12)[None] * 7 % 97
    with torch.inference_mode():
        before = model(tokens, use_cache=False).logits
        count = pack_linears(model)
        after = model(tokens, use_cache=False).logits
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert count == len(packed) >= 2 * 2 + 1
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert all(module.packed.is_bfloat16 == halved for module in packed if module.in_features > 1)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert model.dtype == torch.float32
    assert pack_linears(model) == 0


@needs_kernel
def test_a_tied_embedding_keeps_its_tensor() -> None:
    model = make("LlamaForCausalLM")
    table = model.get_input_embeddings().weight
    assert model.lm_head.weight is table
    pack_linears(model)
    assert model.get_input_embeddings().weight is table
    assert torch.equal(model.lm_head.weight, table)
    assert sum(p.numel() for p in model.parameters()) == table.numel() + 5 * 32  # what is left: embedding and norms


@needs_kernel
def test_what_is_no_plain_linear_layer_is_left_alone() -> None:
    class Twisted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    shared, hooked = nn.Linear(4, 4), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(shared, nn.ReLU(), shared, Twisted(4, 4), nn.Linear(4, 4).double(), hooked)
    kinds = [type(module) for module in model]
    assert pack_linears(model) == 1
    assert [type(module) for module in model] == [PackedLinear, nn.ReLU, PackedLinear, *kinds[3:]]
    assert model[0] is model[2]


@needs_kernel
def test_casts_and_copies_do_not_touch_the_weight() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    weight, bias, x = model[0].weight, model[0].bias, torch.randn(2, 5)
    pack_linears(model)
    expected = model(x)
    assert torch.equal(model.to(torch.float16)(x), expected)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    assert torch.equal(model[0].weight, weight)
    assert torch.equal(model[0].bias, bias)
    assert (model[0].in_features, model[0].out_features) == (5, 3)
    with pytest.raises(RuntimeError, match="no gradient"):
        model(x.requires_grad_())


def test_without_a_kernel_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears.cpu_linear, "available", lambda: False)
    model = nn.Sequential(nn.Linear(4, 4))
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear


@needs_kernel
def test_without_products_of_bytes_weights_are_rounded_and_angles_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears.cpu_linear, "has_integers", lambda: False)
    model = make("LlamaForCausalLM", halved=False)
    weight, angles = model.model.layers[0].mlp.up_proj.weight.detach().clone(), model.model.rotary_emb.inv_freq.clone()
    linears.prepared(model, compact=True)
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, weight.bfloat16().float())
    assert torch.equal(model.model.rotary_emb.inv_freq, angles)
    assert not torch.equal(angles, angles.bfloat16().float())


@pytest.mark.skipif(not cpu_linear.has_integers(), reason="no products of whole numbers here")
def test_rounded_weights_take_a_byte_and_are_the_nearest_there_are() -> None:
    model = make("LlamaForCausalLM", halved=False)
    layer = model.model.layers[0].self_attn.q_proj
    weight = layer.weight.detach().clone()
    pack_linears(model, integers=True, rounded=True)
    packed = model.model.layers[0].self_attn.q_proj
    step = weight.view(len(weight), -1, 32).abs().amax(-1, keepdim=True) / 127
    error = (packed.weight - weight).view_as(weight.view(len(weight), -1, 32)).abs()
    assert packed.packed.kind == "int8"
    assert float(error.max()) > 0
    assert bool((error <= 0.52 * step).all())
    assert linears.products(model) == "int16 x int8 products"


def test_weights_rounded_for_a_gpu_leave_the_embedding_alone_and_say_what_they_are() -> None:
    model = make("LlamaForCausalLM")
    words, before = model.get_input_embeddings().weight.detach().clone(), model.lm_head.weight.detach().clone()
    assert round_linears(model, "int8") == 2 * 7 + 1
    assert torch.equal(model.get_input_embeddings().weight, words)
    head = model.lm_head
    assert isinstance(head, RoundedLinear)
    assert torch.equal(head.weight, head.int8.wide())
    step = before.abs().amax(1, keepdim=True) / 127
    assert bool(((head.weight - before).abs() <= 0.51 * step).all())
    assert not torch.equal(head.weight, before)
    assert round_linears(model, "fp8") == 0  # what is rounded is not rounded again
