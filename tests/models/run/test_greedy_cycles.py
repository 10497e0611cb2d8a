"""Several greedy tokens in one call: those of passes one by one, with the same cache and features, to the bit."""

from __future__ import annotations

import pytest
import torch

from slipstream.core.types import Origin, Request, Row, Verdict
from slipstream.drafters.none import empty_draft
from slipstream.kernels.cpu.decoder import kernel
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.linears import pack_linears
from tiny import CONTEXT, VOCAB, build, build_packed

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
FEATURES = (0, 1)


def opened(model: TorchModel, ends: frozenset[int] = frozenset()) -> Row:
    row = Row(Request([5, 6, 7, 8, 9], max_tokens=100, ends=ends))
    model.declare(FEATURES)
    model.open([row])
    one_by_one(model, row, 1)  # the first pass reads the prompt
    return row


def one_by_one(model: TorchModel, row: Row, count: int) -> list[int]:
    """The same by ordinary passes."""
    tokens: list[int] = []
    for _ in range(count):
        token = model.score([row], empty_draft(1, VOCAB)).logits.argmax(-1)
        none = torch.zeros(1, 0, dtype=torch.long)
        model.commit([row], Verdict(none, token, torch.ones(1, dtype=torch.bool)))
        row.extend(token.tolist(), [Origin.PLAIN], CONTEXT)
        tokens += token.tolist()
    return tokens


def extend(row: Row, tokens: list[int]) -> None:
    row.extend(tokens, [Origin.PLAIN] * len(tokens), CONTEXT)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_tokens_cache_and_features_are_those_of_single_passes(kind, integers, threads):
    model, before = TorchModel(build_packed(kind, integers), invariant=True), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        row, other = opened(model), opened(model)
        for count in (7, 2, 300 % 7, 60):  # beyond a row's first places and the first table of angles
            tokens = model.continue_greedily(row, count)
            assert tokens == one_by_one(model, other, count)
            extend(row, tokens)
            model.check_integrity()
        for layer in FEATURES:
            assert torch.equal(model.states(row)[layer], model.states(other)[layer][: model.cached(row)])
        assert one_by_one(model, row, 3) == one_by_one(model, other, 3)
    finally:
        torch.set_num_threads(before)


def test_an_end_token_is_the_last_one():
    model = TorchModel(build_packed("llama", True), invariant=True)
    tokens = model.continue_greedily(opened(model), 20)
    end = tokens[6]
    stopped = model.continue_greedily(opened(model, frozenset({end})), 20)
    assert stopped == tokens[: tokens.index(end) + 1]


def test_nothing_follows_logits_that_are_not_finite():
    model = TorchModel(build_packed("llama", False), invariant=True)
    row = opened(model)
    with torch.no_grad():
        model.model.base_model.norm.weight[3] = float("nan")
    assert model.continue_greedily(row, 5) == []
    assert model.score([row], empty_draft(1, VOCAB)).logits.isnan().any()


def test_rows_and_models_that_need_ordinary_passes_have_them():
    model = TorchModel(build_packed("llama", True), invariant=True)
    row = opened(model)
    row.tokens += [4, 4]  # two tokens to read
    assert model.continue_greedily(row, 5) == []
    windowed = build("mistral", sliding_window=8)
    pack_linears(windowed)
    for other in (TorchModel(windowed), TorchModel(build("llama"), kernels=False)):
        assert other.continue_greedily(opened(other), 5) == []
