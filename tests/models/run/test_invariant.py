"""Invariant mode on the default model: one row's logits, bit for bit, however it is computed."""

from __future__ import annotations

import random
import types

import pytest
import torch
from torch import nn
from transformers.activations import ACT2CLS, ACT2FN

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row, Verdict
from slipstream.kernels.cpu.attention import kernel
from slipstream.models.run.invariant import apply_by_steps, free, invariant_attention, why_not
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources import catalog
from slipstream.models.weights.linears import pack_linears
from tiny import VOCAB, build

needs_compiler = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
SHARED = "The quick brown fox jumps over the lazy dog and runs into the forest, where it meets a very old bear. "


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def default(request):
    files = catalog.resolve("smollm2-135m")
    model = catalog.load_model(files, request.param)
    pack_linears(model)
    return TorchModel(model, invariant=True), catalog.load_text(files)


def drafted(model: TorchModel, *tokens: list[int]) -> Draft:
    flat = torch.tensor([token for line in tokens for token in line], dtype=torch.long)
    return Draft(Tree.chains([len(line) for line in tokens]), flat, OneHot(flat, model.vocab))


def opened(model: TorchModel, *prompts: list[int]) -> list[Row]:
    rows = [Row(Request(prompt)) for prompt in prompts]
    model.open(rows)
    return rows


def after(model: TorchModel, rows: list[Row], draft: Draft, slot: int) -> torch.Tensor:
    logits = model.score(rows, draft).logits[slot].clone()
    model.close(rows)
    return logits


@needs_compiler
@pytest.mark.model
def test_five_influences_change_nothing(default):
    """Batch mates, prefill chunks, a reused prefix, depth, and the cache's buckets."""
    model, text = default
    ids, others = text.encode(SHARED, raw=True)[:20], text.encode("Once upon a time there was a king. " * 6, raw=True)
    model.retain(0)

    def opened(*prompts: list[int]) -> list[Row]:
        rows = [Row(Request(prompt)) for prompt in prompts]
        model.open(rows)
        return rows

    base = after(model, opened(ids), drafted(model, []), 0)
    assert torch.equal(after(model, opened(others, ids, others[:33]), drafted(model, [], [], []), 1), base), "mates"
    pieces = opened(ids)
    model.prefill(pieces, 7)
    model.prefill(pieces, 5)
    assert torch.equal(after(model, pieces, drafted(model, []), 0), base), "chunks"
    assert torch.equal(after(model, opened(ids[:16]), drafted(model, [*ids[16:], 5, 6]), 4), base), "depth"
    stepping = opened(ids[:15])
    for token in ids[15:]:
        model.score(stepping, drafted(model, []))
        model.commit(
            stepping, Verdict(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1).long(), torch.ones(1).bool())
        )
        stepping[0].tokens.append(token)
    assert torch.equal(after(model, stepping, drafted(model, []), 0), base), "token by token"
    large = opened(others * 3)
    model.score(large, drafted(model, []))
    assert torch.equal(after(model, opened(ids), drafted(model, []), 0), base), "buckets"
    model.close(large)
    model.retain(1 << 12)
    after(model, opened(ids), drafted(model, []), 0)
    assert torch.equal(after(model, opened(ids), drafted(model, []), 0), base), "reused prefix"


@needs_compiler
def test_a_tree_gives_the_bits_of_its_chains():
    model = build("llama")
    pack_linears(model)
    wrapped = TorchModel(model, invariant=True)
    tree = Tree.of(1, [0] * 5, [-1, -1, 0, 1, 3])
    token = torch.tensor([3, 4, 5, 6, 7])
    row = Row(Request([1, 2, 3]))
    wrapped.open([row])
    branched = wrapped.score([row], Draft(tree, token, OneHot(token, wrapped.vocab))).logits
    chain = wrapped.score([row], drafted(wrapped, [4, 6, 7])).logits
    assert torch.equal(branched[[0, 2, 4, 5]], chain)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "gemma3_text", "gpt_neox", "phi3", "cohere2", "opt"])
def test_rows_lengths_and_drafts_of_all_kinds_beside_a_row_change_nothing(kind, dtype):
    """In half precision too: what lies between the kernels works token by token."""
    model = build(kind).to(dtype)
    pack_linears(model)
    wrapped, rng = TorchModel(model, invariant=True, retained=0), random.Random(2)
    text = [rng.randrange(VOCAB) for _ in range(30)]
    alone = [after(wrapped, opened(wrapped, text[:size]), drafted(wrapped, []), 0) for size in range(20, 31)]
    for trial in range(12):
        mates = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))] for _ in range(rng.randrange(6))]
        depth, size = rng.randrange(9), rng.randrange(20, 23)
        rows = opened(wrapped, *mates, text[:size])
        wrapped.prefill(rows, rng.randrange(1, 20))
        drafts = [[rng.randrange(VOCAB) for _ in range(rng.randrange(5))] for _ in mates]
        slots = len(rows) + sum(map(len, drafts))
        scores = wrapped.score(rows, drafted(wrapped, *drafts, text[size : size + depth])).logits
        row_logits = [scores[len(mates)], *scores[slots:]]
        wrapped.close(rows)
        assert all(torch.equal(a, b) for a, b in zip(row_logits, alone[size - 20 :], strict=False)), f"trial {trial}"


def elementwise_functions() -> dict[str, nn.Module]:
    """Every activation function that transformers offers and that has no weights."""
    return {name: ACT2FN[name] for name in ACT2CLS if not list(ACT2FN[name].parameters())}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", elementwise_functions())
def test_a_row_of_an_activation_has_the_same_bits_beside_any_other_rows(name, dtype):
    """In tensors of every width and number of rows, also so many that several threads share them."""
    function, sample = ACT2FN[name], torch.randn(40_000, generator=torch.Generator().manual_seed(3)).to(dtype) * 3
    expected = apply_by_steps(function, sample)
    step = torch.finfo(dtype).eps  # scalar and vector instructions round differently
    assert torch.allclose(expected, function(sample), 2 * step, step, equal_nan=True), "it is the function itself"
    for width in [*range(1, 132), 333, 780, 11_008, 13_333]:
        rows = sample[: len(sample) // width * width].view(-1, width)[:200]
        whole = apply_by_steps(function, rows.view(1, -1, width))[0].nan_to_num()
        some = sorted({*range(len(rows))[:3], *range(len(rows))[-2:], len(rows) // 2})  # all would take minutes
        for n in some:
            assert torch.equal(apply_by_steps(function, rows[n]).nan_to_num(), whole[n]), (width, n)
            assert torch.equal(apply_by_steps(function, rows[n : n + 1]).nan_to_num(), whole[n : n + 1]), (width, n)
        for part in (slice(1, None), slice(2, 5), slice(-3, None)):
            together = apply_by_steps(function, rows[part].view(1, -1, width))[0]
            assert torch.equal(together.nan_to_num(), whole[part]), (width, part)
        assert torch.equal(apply_by_steps(function, rows[:, None].expand(-1, 2, -1))[:, 1].nan_to_num(), whole), width


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_for_a_cpu_are_refused_on_a_gpu_by_name(dtype):
    """What the check reads of a model that lies on a GPU."""
    there = types.SimpleNamespace(device=torch.device("cuda"), dtype=getattr(torch, dtype))
    assert why_not(there) == f"its kernels are made for a CPU in float32, bfloat16 or float16, not for {dtype} on cuda"
    with pytest.raises(ValueError, match=f"invariant mode is not available for SimpleNamespace.*{dtype} on cuda"):
        invariant_attention(there)
    assert not free(there)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_for_layers_of_the_common_kind():
    wrapped = TorchModel(build("llama").to("cuda"), invariant=True)
    text = [5, 9, 30, 41, 8, 77, 2, 60]
    together = Row(Request(text)), Row(Request(text[::-1] * 3)), Row(Request(text[:3]))
    alone = []
    for rows in (together[:1], together):
        wrapped.open(rows)
        nothing = torch.zeros(0, dtype=torch.long)
        draft = Draft(Tree.chains([0] * len(rows)), nothing, OneHot(nothing, wrapped.vocab))
        alone.append(wrapped.score(rows, draft).logits[0])
        wrapped.close(rows)
        wrapped.retain(0)
    assert torch.equal(*alone)
    row = Row(Request(text))
    wrapped.open([row])
    tree = Tree.of(1, [0] * 6, [-1, -1, 0, 1, 1, 3])  # two branches, three levels
    tokens = torch.tensor([3, 4, 5, 6, 7, 8])
    branched = wrapped.score([row], Draft(tree, tokens, OneHot(tokens, wrapped.vocab))).logits
    chain = torch.tensor([4, 6, 8])  # the path of the last node
    straight = wrapped.score([row], Draft(Tree.chains([3]), chain, OneHot(chain, wrapped.vocab))).logits
    assert torch.equal(branched[[0, 2, 4, 6]], straight), "nodes of a tree have the bits of a chain"
    with pytest.raises(ValueError, match="invariant mode is not available for GPT2LMHeadModel"):
        TorchModel(build("gpt2").to("cuda"), invariant=True)


@needs_compiler
def test_it_is_free_in_float32_alone():
    """Half precision has faster libraries where there are instructions for it; there the mode is for who asks."""
    model = build("llama")
    assert not free(model), "its linears are not packed yet"
    pack_linears(model)
    assert free(model)
    half = build("llama").to(torch.bfloat16)
    pack_linears(half)
    assert why_not(half) is None
    assert not free(half)


@pytest.mark.parametrize(("name", "says"), [("mixtral", "experts"), ("gpt_oss", "sinks|experts|kernel")])
def test_what_cannot_promise_it_is_refused_by_name(name, says):
    model = build(name)
    pack_linears(model)
    with pytest.raises(ValueError, match=says):
        TorchModel(model, invariant=True)


def test_linears_that_are_not_packed_are_refused():
    with pytest.raises(ValueError, match="is not run by a kernel"):
        TorchModel(build("llama"), invariant=True)
