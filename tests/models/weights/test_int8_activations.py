"""Activations of eight bits (`--dtype a8`): another target, named, that keeps all that the others promise."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from grids import eight, quantise
from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.drafters.eagle.cpu_layer import cpu_layer
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.engines import open_engine
from slipstream.kernels.cpu import decoder as cpu_decoder
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.models.load_target import compile_target
from slipstream.models.run.cpu.decoder import CpuDecoder
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.catalog import load_model, resolve
from slipstream.models.weights import linears, precision
from slipstream.models.weights.linears import PackedLinear, pack_linears
from tiny import VOCAB, build

needs_integers = pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def build_packed(row_bits: int, kind: str = "llama") -> TorchModel:
    model = quantise(build(kind, **{**WIDE, **({"head_dim": 16} if kind == "qwen3" else {})}))
    pack_linears(model, integers=True, rounded=True, row_bits=row_bits)
    return TorchModel(model, invariant=True)


def scored(model: TorchModel, rows: list[Row], draft: Draft, chunk: int = 64) -> Tensor:
    model.open(rows)
    model.prefill(rows, chunk)
    logits = model.score(rows, draft).logits
    model.close(rows)
    return logits


def tree(rng: random.Random, rows: int) -> Draft:
    owner = sorted(rng.randrange(rows) for _ in range(13))
    parent = [rng.choice([-1, *(j for j in range(i) if owner[j] == owner[i])]) for i in range(len(owner))]
    token = torch.tensor([rng.randrange(VOCAB) for _ in owner])
    return Draft(Tree.of(rows, owner, parent), token, OneHot(token, VOCAB))


@needs_integers
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_layers_run_as_one_call_near_those_of_sixteen_bits(kind):
    short, wide = build_packed(8, kind), build_packed(16, kind)
    assert isinstance(short.decoder, CpuDecoder)
    small = "int4/int8" if kind == "llama" else "int4"  # whose output matrix is the embedding
    assert linears.products(short.model) == f"int8 x {small} products"
    assert linears.products(wide.model) == f"int16 x {small} products"
    rows, draft = [Row(Request([5, 9, 2, 7])), Row(Request([3]))], tree(random.Random(1), 2)
    mine, theirs = (scored(model, rows, draft) for model in (short, wide))
    assert 1e-5 < float((mine - theirs).norm() / theirs.norm()) < 5e-2


@needs_integers
def test_a_row_has_the_same_bits_whatever_is_beside_it():
    """Batch mates, pieces of the prompt, siblings in a tree: none of them shows."""
    model, rng = build_packed(8), random.Random(2)
    rows = [Row(Request([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))])) for _ in range(6)]
    draft = tree(rng, 6)
    together = scored(model, rows, draft)
    assert torch.equal(scored(model, rows, draft, chunk=3), together)
    nothing = torch.empty(0, dtype=torch.long)
    for r, row in enumerate(rows):
        alone = scored(model, [row], Draft(Tree.of(1, [], []), nothing, OneHot(nothing, VOCAB)))
        assert torch.equal(alone[0], together[r])


@needs_integers
def test_products_of_sixteen_bits_and_of_eight_do_not_share_a_call():
    model = quantise(build("llama", **WIDE))
    layer = model.base_model.layers[1].mlp
    layer.down_proj = PackedLinear(cpu_linear.pack(layer.down_proj.weight.detach(), integers=True))
    pack_linears(model, integers=True, row_bits=8)
    assert TorchModel(model).decoder is None


@needs_integers
def test_a_head_of_eight_bits_drafts_by_the_library_of_its_own():
    net = EagleNet(EagleConfig(64, 4, 2, 16, 96, (0, 1), 32), eight(torch.randn(32, 64)))
    pack_linears(net, integers=True, rounded=True, row_bits=8)
    call = cpu_layer(net)
    assert call is not None
    assert call._kernel is cpu_decoder.kernel(8)
    assert call._net.row_bits == 8
    state = torch.randn(3, 64)
    expected = net.logits(state).detach()
    assert 1e-5 < float((call.logits(state) - expected).norm() / expected.norm()) < 2e-2


def test_refused_in_a_sentence_where_it_cannot_be_had(monkeypatch):
    with pytest.raises(ValueError, match="a8, activations of eight bits, needs a CPU that multiplies bytes"):
        precision.choose("a8", "cuda")
    with pytest.raises(ValueError, match="transformers has no a8, activations of eight bits; the native engine has"):
        open_engine("transformers", "smollm2-135m", "none", dtype="a8")
    with pytest.raises(ValueError, match="a model is compiled for auto or a8"):
        compile_target("smollm2-135m", "float32")
    monkeypatch.setattr(precision.cpu_linear, "has_integers", lambda row_bits=16: False)
    with pytest.raises(ValueError, match="auto runs everywhere"):
        precision.choose("a8")


@needs_integers
@pytest.mark.model
def test_a_draft_model_is_not_asked_for_it_by_itself():
    with pytest.raises(ValueError, match="a8 is for a target"):
        load_model(resolve("smollm2-135m"), "a8")
