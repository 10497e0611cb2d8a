"""Passes of the kernels through a small model: on a GPU where there is one, else under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.kernels.gpu.attention import shapes
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.gpu import pass_sizes, pass_table
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.int8_linear import round_linears
from tiny import build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TEXT = [5, 9, 30]
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(autouse=True)
def _few_parts(monkeypatch):
    monkeypatch.setattr(pass_sizes, "LEAST", 1)


def logits(decoder: GpuDecoder, *lines: tuple[int, list[int], list[tuple[int, int]]]) -> torch.Tensor:
    """The logits of all entries of the last line; each line has its start, tokens and nodes."""
    cache = KVCache()
    row = cache.take()
    for start, tokens, nodes in lines:
        piece = RowSlice(RowEntries.of(row, start, tokens, nodes))
        kept = torch.arange(len(piece), device=DEVICE)
        found, _, _ = decoder.forward(cache, [piece], (0, decoder.layers), None, (), kept)
    return found


@torch.inference_mode()
def test_in_invariant_mode_nodes_of_a_tree_have_the_bits_of_a_chain():
    model = build("llama", **SMALL).to(DEVICE)
    anatomy = TorchModel(model).anatomy
    decoder = GpuDecoder(model, anatomy.layers, anatomy.windows, exact=True)
    nodes = [(3, -1), (4, -1), (5, 0), (6, 1), (7, 1), (8, 3)]
    end = len(TEXT) - 1
    tree = logits(decoder, (0, TEXT[:-1], []), (end, TEXT[-1:], nodes))
    chain = logits(decoder, (0, TEXT[:-1], []), (end, [TEXT[-1], 4, 6, 8], []))
    assert torch.equal(tree[[0, 2, 4, 6]], chain)


@torch.inference_mode()
def test_long_prompts_by_the_library_have_the_logits_of_the_kernels(monkeypatch):
    model = build("llama", **SMALL).to(DEVICE)
    anatomy = TorchModel(model).anatomy
    decoder = GpuDecoder(model, anatomy.layers, anatomy.windows)
    prompt = [n % 90 for n in range(0, 26 * 7, 7)]
    lines = [(0, prompt[:16], []), (16, prompt[16:], [])]
    expected = logits(decoder, *lines)
    decoder.largest = 4
    monkeypatch.setattr(pass_table, "LONG", 8)
    monkeypatch.setattr(shapes, "PROMPT", 8)
    torch.testing.assert_close(logits(decoder, *lines), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@torch.inference_mode()
def test_weights_in_eight_bits_are_kept_in_the_models_type_for_passes_over_many_tokens(kind, monkeypatch):
    model = build("llama", **SMALL).to(DEVICE)
    round_linears(model, kind)
    target = TorchModel(model, kernels=False)
    decoder = GpuDecoder(target.model, target.anatomy.layers, target.anatomy.windows)
    for layer, block in zip(target.anatomy.layers, decoder.net.blocks, strict=True):
        parts = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        assert torch.equal(block.qkv.full, (block.qkv.number.float() * block.qkv.scale[:, None]))
        assert {part.weight.untyped_storage().data_ptr() for part in parts} == {block.qkv.full.data_ptr()}
        assert torch.equal(torch.cat([part.weight for part in parts]), block.qkv.full)
    few = logits(decoder, (0, TEXT, []))
    monkeypatch.setitem(vars(decoder.net), "own_tokens", 1)  # more tokens than one are many
    many = logits(decoder, (0, TEXT, []))
    torch.testing.assert_close(many, few, atol=1e-4, rtol=1e-4)
