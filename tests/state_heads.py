"""Random heads of `medusa`, `mlp` and `prophet` for tiny targets and for tables, and their laws over whole texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from heads import Words, layer_output
from slipstream.core.types import Row
from slipstream.drafters.heads.drafter import HeadsDrafter
from slipstream.drafters.heads.medusa import Medusa, MedusaConfig, MedusaNet
from slipstream.drafters.heads.mlp import Mlp, MlpConfig, MlpNet
from slipstream.drafters.heads.network import HeadsNet
from slipstream.drafters.heads.prophet import Prophet, ProphetConfig, prophet_net
from slipstream.models.run.table_model import Table
from slipstream.models.run.torch_model import TorchModel

SIZES: dict[str, dict[str, Any]] = {  # by kind; a variant is written after a comma
    "medusa": {"blocks": 2},
    "mlp": {"inner": 24},
    "prophet": {"window": 4, "attention_heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate": 24},
    "prophet,linear": {"projection": "linear"},
    "medusa,recurrent": {"blocks": 1, "recurrent": 12},
    "prophet,recurrent": {"window": 4, "head_dim": 8, "intermediate": 24, "recurrent": 12},
}
DRAFTERS: dict[str, type[HeadsDrafter]] = {"medusa": Medusa, "mlp": Mlp, "prophet": Prophet}
NETS: dict[str, tuple[type, Callable[..., HeadsNet]]] = {
    "medusa": (MedusaConfig, MedusaNet),
    "mlp": (MlpConfig, MlpNet),
    "prophet": (ProphetConfig, prophet_net),
}


def random_net(kind: str, hidden: int, features: Sequence[int], draft_vocab: int, heads: int = 4) -> HeadsNet:
    """Weights large enough for every part of it to matter."""
    torch.manual_seed(5)
    config, make = NETS[kind.partition(",")[0]]
    net = make(config(hidden, tuple(features), heads, draft_vocab, **SIZES[kind]))
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0, 0.3) if weight.ndim > 1 else weight.uniform_(0.5, 1.5)
    return net.eval()


def drafter_for(kind: str) -> Callable[..., HeadsDrafter]:
    """A function that makes a drafter for a target, with these ids as its draft vocabulary."""

    def make(target: TorchModel, ids: Sequence[int] | None = None, features: Sequence[int] = (1, 2)) -> HeadsDrafter:
        ids = range(target.vocab) if ids is None else ids
        output = target.model.get_output_embeddings().weight.detach()
        net = random_net(kind, output.shape[1], features, len(ids)).to(output)
        target.declare(net.config.features)
        embedding = target.model.get_input_embeddings().weight.detach()
        drafter = DRAFTERS[kind.partition(",")[0]]
        return drafter(net, torch.tensor(ids, device=output.device), embedding, output, target, target.vocab)

    return make


def heads_on_table(kind: str) -> Callable[[Table], HeadsDrafter]:
    """Heads over a target that is a table, with one token fewer than it."""

    def make(table: Table, hidden: int = 8) -> HeadsDrafter:
        words, ids = Words(table.vocab, hidden), range(table.vocab - 1)
        net = random_net(kind, hidden, (0, 1), len(ids)).double()
        drafter = DRAFTERS[kind.partition(",")[0]](
            net, torch.tensor(ids), words.layers[1], words.layers[0], words, table.vocab
        )
        logits = drafter.logits
        drafter.logits = lambda vector: logits(vector).round(decimals=6)  # type: ignore[method-assign]  # see `rounded`
        return drafter

    return make


@torch.no_grad()
def reference(plain: Any, drafter: HeadsDrafter, row: Row, drafted: Sequence[int]) -> torch.Tensor:
    """Logits of the token after a row's text and a path of drafted tokens, by the network as it is trained."""
    net, read, embedding = drafter.net, row.length - 1, plain.get_input_embeddings().weight
    layers = [layer_output(plain, row.tokens, layer) for layer in net.config.features]
    features, after = torch.cat(layers, -1)[None, :read], torch.tensor([row.tokens[1:]])
    state = net.states(features, embedding[after])[0, -1]
    for head, token in enumerate(drafted, 1):
        state = net.step(state, embedding[token], head)
    rows = plain.get_output_embeddings().weight[drafter.vocabulary.ids]
    return rows @ net.vector(state, len(drafted))
