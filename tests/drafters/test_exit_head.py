"""A trained head of early exit: its laws over whole texts, its folder, its refusals, and the loop around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from heads import TableTarget
from slipstream.audit.subject import Pair
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.early_exit import EarlyExit, EarlyExitOptions
from slipstream.drafters.exit_head.head import ExitHead
from slipstream.drafters.exit_head.network import ExitConfig, ExitNet
from slipstream.drafters.files.net_folder import save_net
from slipstream.drafters.none import NoDrafter
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

LAYERS, LAYER, HIDDEN = 4, 2, 32
IDS = torch.arange(0, VOCAB, 2)


def random_net(window: int) -> ExitNet:
    torch.manual_seed(3)
    net = ExitNet(ExitConfig(HIDDEN, LAYER, 4, 2, 8, 24, len(IDS), window))
    for parameter in net.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return net.eval().requires_grad_(False)


def drafter_on(model: TorchModel, window: int = 5) -> EarlyExit:
    output = model.model.get_output_embeddings().weight.detach()
    drafter = EarlyExit(model, LAYER, ExitHead(random_net(window), IDS, output[IDS], model, VOCAB))
    model.declare(drafter.needs.features)
    return drafter


def target() -> TorchModel:
    return TorchModel(build("llama", num_hidden_layers=LAYERS))


def expected_law(model, net: ExitNet, text: list[int], temperature: float) -> torch.Tensor:
    """The head's law after a text, without a cache: all states of the first layers, then the block over all of them."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            states = model(torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states[LAYER]
            logits = net(states)[0, -1] @ model.get_output_embeddings().weight[IDS].T
    finally:
        model.set_attn_implementation("slipstream")
    return torch.zeros(VOCAB).index_copy(0, IDS, (logits / temperature).softmax(-1))


@pytest.mark.parametrize("window", [3, 64])
def test_every_law_is_that_of_the_block_over_the_whole_text(window):
    model = target()
    drafter = drafter_on(model, window)
    rows = [Row(Request([5, 6, 7, 8, i][i:], Sampling(0.7, seed=i))) for i in range(3)]
    model.open(rows)
    model.prefill(rows, 100)
    draft = drafter.propose(rows, [Budget(depth) for depth in (4, 0, 2)], CounterNoise(rows, [False] * 3))
    assert [int((draft.tree.row == r).sum()) for r in range(3)] == [4, 0, 2]
    for r, row in enumerate(rows):
        text = list(row.tokens)
        for node in (draft.tree.row == r).nonzero()[:, 0].tolist():
            expected = expected_law(model.model, drafter.head.net, text, 0.7)
            torch.testing.assert_close(draft.law.dense()[node], expected, atol=1e-4, rtol=1e-3)
            text.append(int(draft.token[node]))


@pytest.mark.parametrize(
    ("rule", "temperature", "policy"),
    [
        ("greedy", 0.0, Fixed(3)),
        ("greedy", 0.0, Fixed(3, shape=Shape(nodes=6, width=3))),
        ("coupled", 0.8, Fixed(2, shape=Shape.levels([2, 1]))),
    ],
)
def test_the_text_is_that_of_plain_decoding(rule, temperature, policy):
    def texts(model, drafter, own_policy) -> list[list[int]]:
        rows = [Row(Request([3, 4, 5 + i][: 2 + i % 2], Sampling(temperature, seed=i), 10 + i)) for i in range(3)]
        for _ in decode(rows, model, drafter, rules.get(rule)(), own_policy):
            model.check_integrity()
        return [row.output for row in rows]

    model = target()
    assert texts(model, drafter_on(model), policy) == texts(target(), NoDrafter(VOCAB), Fixed(0))


class TinyTarget(TableTarget):
    """A tiny model as a target that drafters are built for."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__(Pair.random(1).draft)
        self.model, self.features, self.vocab = model, model, VOCAB
        self.output = model.model.get_output_embeddings().weight.detach()
        self.embedding = model.model.get_input_embeddings().weight.detach()
        self.files = SimpleNamespace(name="tiny", sha256="0" * 64, quantised=False)


def test_a_head_is_loaded_from_its_folder_and_refused_for_another_target(tmp_path):
    net, tiny = random_net(5), TinyTarget(target())
    save_net(tmp_path, "early_exit", net, net.config, IDS, "bf16", {"target": "tiny", "target_sha256": "0" * 64})
    drafter = EarlyExit.build(tiny, EarlyExitOptions(model=str(tmp_path)))
    assert (drafter.layers, drafter.needs.features) == (LAYER, (LAYER - 1,))
    assert EarlyExit.build(tiny, EarlyExitOptions(layer=3)).layers == 3
    with pytest.raises(ValueError, match=r"layer is 3, and the head in .* was trained for layer 2"):
        EarlyExit.build(tiny, EarlyExitOptions(layer=3, model=str(tmp_path)))
    tiny.files = SimpleNamespace(name="other", sha256="1" * 64, quantised=False)
    with pytest.raises(ValueError, match=r"was trained for tiny \(sha256 000.*other is another target"):
        EarlyExit.build(tiny, EarlyExitOptions(model=str(tmp_path)))


@pytest.mark.parametrize("window", [3, 64])
def test_kept_keys_and_values_are_those_computed_anew_and_end_with_their_rows(window):
    model = target()
    drafter = drafter_on(model, window)
    head, compared = drafter.head, 0
    kept = head.context

    def checked(row):
        nonlocal compared
        found, again = kept(row), kept(row)
        read = row.length - 1
        fresh = head._window(row, read - found[1], read, 0, None)
        for part, same, expected in zip(found[0], again[0], fresh, strict=True):
            torch.testing.assert_close(part[len(part) - found[1] :], expected)
            assert torch.equal(part, same)
        compared += 1
        return found

    head.context = checked
    rows = [Row(Request([3, 4, 5 + i][: 2 + i % 2], Sampling(0.8, seed=i), 10 + i)) for i in range(3)]
    budgets = iter([0, 3, 3, 0, 0, 2] * 20)
    policy = Fixed(3)
    policy.budget = lambda rows: [Budget(next(budgets)) for _ in rows]
    for _ in decode(rows, model, drafter, rules.get("token")(), policy):
        pass
    assert compared > 6
    assert not head._held
