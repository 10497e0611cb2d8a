"""The pass in one call equals the model's own modules, and is taken only where it does."""

from __future__ import annotations

import random

import pytest
import torch

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Origin, Request, Row, Verdict
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.cpu.decoder import kernel
from slipstream.models.run.cpu.rotary import RotaryTable
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.linears import pack_linears
from tiny import ARCHITECTURES, VOCAB, WIDE, build, build_packed

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
COMMON_KIND = ["llama", "mistral", "qwen2", "qwen3"]
NONE = torch.zeros(0, dtype=torch.long)
write = FeatureStore.write


def pair(model) -> tuple[TorchModel, TorchModel]:
    """One wrapper that takes the call, and one that goes through the modules."""
    fast = TorchModel(model, invariant=True)
    slow = TorchModel(model, anatomy=fast.anatomy, invariant=True)
    slow.forward_pass.decoder = None
    return fast, slow


def near(mine: torch.Tensor, theirs: torch.Tensor, integers: bool) -> bool:
    """Up to rounding, of activations to sixteen bits where products are of whole numbers."""
    return bool((mine - theirs).norm() <= (1e-4 if integers else 1e-5) * theirs.norm())


def tree(rng: random.Random, rows: int) -> Draft:
    owner = sorted(rng.randrange(rows) for _ in range(9))
    parent: list[int] = []
    for i, r in enumerate(owner):
        mine = [j for j in range(i) if owner[j] == r]
        parent.append(rng.choice([-1, *mine]))
    token = torch.tensor([rng.randrange(VOCAB) for _ in owner])
    return Draft(Tree.of(rows, owner, parent), token, OneHot(token, VOCAB))


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("kind", COMMON_KIND)
def test_ragged_rows_and_trees_score_as_the_modules_do(kind, integers):
    fast, slow = pair(build_packed(kind, integers))
    assert fast.decoder is not None
    rng = random.Random(1)
    for model in (fast, slow):
        model.declare([0, 1])
    for _ in range(6):
        rows = [Row(Request([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 25))])) for _ in range(4)]
        draft = tree(rng, 4)
        both = []
        for model in (fast, slow):
            model.open(rows)
            model.prefill(rows, 5)
            both.append(model.score(rows, draft))
            model.close(rows)
        mine, theirs = both
        assert near(mine.logits, theirs.logits, integers)
        assert mine.features.keys() == theirs.features.keys() == {0, 1}
        for layer in (0, 1):
            assert near(mine.features[layer], theirs.features[layer], integers)


@pytest.mark.parametrize("integers", [False, True])
def test_a_pass_in_two_parts_has_the_bits_of_a_whole_one(integers):
    fast, _ = pair(build_packed("llama", integers))
    rng = random.Random(2)
    row, draft = Row(Request([5, 6, 7, 8])), tree(rng, 1)
    fast.open([row])
    whole = fast.score([row], draft).logits
    state = fast.peek([row], draft, 1)
    assert torch.equal(fast.score([row], draft).logits, whole)
    last = fast.peek([row], draft, 2)
    assert state.shape == last.shape
    assert torch.equal(fast.logits(last), whole)


@pytest.mark.parametrize("kind", sorted(set(ARCHITECTURES) - set(COMMON_KIND)))
def test_layers_of_another_kind_keep_their_modules(kind):
    model = build(kind)
    pack_linears(model)
    assert TorchModel(model).decoder is None


def test_a_part_that_computes_something_else_is_noticed():
    """The names are right, the numbers are not."""
    model = build("llama")
    pack_linears(model)
    layer = model.base_model.layers[1]
    layer.mlp.act_fn = torch.nn.GELU()
    assert TorchModel(model).decoder is None


@pytest.mark.parametrize(
    "more", [{}, {"hidden_size": 320, "intermediate_size": 544, "num_attention_heads": 5, "num_key_value_heads": 5}]
)
def test_threads_change_no_bit(more):
    """Rows so wide that threads share one, too."""
    fast, _ = pair(build_packed("llama", cpu_linear.has_integers(), **more))
    row, before, logits = Row(Request([5, 6, 7, 8] * 10)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            fast.open([row])
            logits.append(fast.score([row], tree(random.Random(3), 1)).logits)
            fast.close([row])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
def test_products_of_the_same_rows_must_read_them_alike():
    """Of the three that read the same rows only one is of few bits: a matrix of zeros."""
    model = build("llama", **WIDE)
    model.base_model.layers[1].self_attn.k_proj.weight.data.zero_()
    pack_linears(model, integers=True)
    assert TorchModel(model).decoder is None


class Turning(torch.nn.Module):
    """Angles of positions; with `reach`, slower ones for everybody as soon as somebody is beyond it."""

    def __init__(self, reach: int | None = None) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, state: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        slow = self.reach is not None and int(position.max()) >= self.reach
        angle = position[..., None].float() * torch.tensor([1.0, 0.1]) / (2 if slow else 1)
        return angle.cos(), angle.sin()


@pytest.mark.parametrize("reach", [None, 300])
def test_angles_are_looked_up_only_where_they_are_a_matter_of_the_position(reach):
    module = Turning(reach)
    angles = RotaryTable(module)
    for below in (5, 40, 299, 400, 7):
        position = torch.tensor([0, below // 2, below - 1])
        for angle, expected in zip(angles(torch.zeros(3, 4), position, below), module(None, position), strict=True):
            assert torch.equal(angle, expected)


def test_a_plain_pass_over_one_row_writes_its_features_itself(monkeypatch):
    """Nothing is copied after it, and they are what is copied after passes of other kinds."""
    fast, slow = pair(build_packed("llama", False))
    copied = []
    monkeypatch.setattr(FeatureStore, "write", lambda self, *rest: copied.append(rest[0]) or write(self, *rest))
    row, mate = Row(Request([5, 6, 7, 8])), Row(Request([9, 10]))
    for model in (fast, slow):
        model.declare([0, 1])
        model.open([row, mate])
    plain, both = (Draft(Tree.chains([0] * n), NONE, OneHot(NONE, VOCAB)) for n in (1, 2))
    scores = fast.score([row], plain)
    assert not copied
    fast.commit([row], verdict := Verdict(NONE.view(1, 0), torch.tensor([3]), torch.tensor([False])))
    slow.score([row], plain)
    slow.commit([row], verdict)
    for layer, mine in fast.states(row).items():
        assert near(mine, slow.states(row)[layer], False)
        assert torch.equal(scores.features[layer], mine[-1:])
    row.extend([3], [Origin.PLAIN], 100)
    fast.score([row, mate], both)
    assert copied == [0, 1], "of several rows they do not lie side by side"


def test_features_of_a_draft_outlive_its_commit():
    """A commit moves accepted nodes of a tree to the places of others: the scores of the pass stay what they were."""
    fast, _ = pair(build_packed("llama", False))
    fast.declare([0, 1])
    row, token = Row(Request([5, 6, 7, 8])), torch.tensor([1, 2, 3])
    fast.open([row])
    draft = Draft(Tree.of(1, [0, 0, 0], [-1, -1, 1]), token, OneHot(token, VOCAB))
    scores = fast.score([row], draft)
    before = {layer: scores.features[layer].clone() for layer in (0, 1)}
    fast.commit([row], Verdict(torch.tensor([[1, 2]]), torch.tensor([3]), torch.tensor([False])))
    for layer, state in before.items():
        assert torch.equal(scores.features[layer], state)
        assert torch.equal(fast.states(row)[layer][-2:], state[2:])


def test_features_written_by_passes_survive_that_the_cache_grows_and_is_laid_anew():
    """Rows decode plainly in turn, past the places and the rows of a fresh cache, and after another one left."""
    fast, slow = pair(build_packed("llama", False))
    draft = Draft(Tree.chains([0]), NONE, OneHot(NONE, VOCAB))
    verdict = Verdict(NONE.view(1, 0), torch.tensor([3]), torch.tensor([False]))
    rows = [Row(Request([5 + n, 6, 7])) for n in range(3)]
    for model in (fast, slow):
        model.declare([0, 1])
        model.bound(3 * 128)
        model.open(rows[:2])
    for cycle in range(90):
        if cycle == 40:
            fast.open(rows[2:])
            slow.open(rows[2:])
        if cycle == 60:
            fast.close(rows[:1])
            slow.close(rows[:1])
        for row in rows[cycle >= 60 : 2 + (cycle >= 40)]:
            for model in (fast, slow):
                model.score([row], draft)
                model.commit([row], verdict)
            row.extend([cycle % VOCAB], [Origin.PLAIN], 1000)
    for row in rows[1:]:
        theirs = slow.states(row)
        for layer, mine in fast.states(row).items():
            assert near(mine, theirs[layer], False)
    fast.check_integrity()
