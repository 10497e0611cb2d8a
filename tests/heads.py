"""Random eagle heads for tiny targets and for tables, and their laws by a plain computation over whole texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.eagle.drafter import Eagle
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.models.run.table_model import Table
from slipstream.models.run.torch_model import TorchModel
from tiny import decoder_layers


def random_head(config: EagleConfig, output: torch.Tensor, seed: int = 5) -> EagleNet:
    """Weights large enough for every part of it to matter."""
    torch.manual_seed(seed)
    net = EagleNet(config, output)
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0, 0.3) if weight.ndim > 1 else weight.uniform_(0.5, 1.5)
        net.scale.uniform_(0.5, 1.5)
    return net.eval()


def head(model: Any, ids: Sequence[int], features: Sequence[int] = (0, 2), seed: int = 5) -> EagleNet:
    output = model.get_output_embeddings().weight.detach()[list(ids)]
    config = EagleConfig(output.shape[1], 4, 2, 8, 48, tuple(features), len(ids))
    return random_head(config, output, seed).to(output.dtype)


def eagle(target: TorchModel, ids: Sequence[int] | None = None, **more: Any) -> Eagle:
    ids = range(target.vocab) if ids is None else ids
    net = head(target.model, ids, **more)
    target.declare(net.config.features)
    return Eagle(net, torch.tensor(ids), target.model.get_input_embeddings().weight.detach(), target, target.vocab)


class Words:
    """Stands in for a target where there is none: two layers whose states are functions of the last two tokens."""

    def __init__(self, vocab: int, hidden: int) -> None:
        self.layers = torch.randn(2, vocab, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def declare(self, features: Iterable[int]) -> None:
        assert set(features) <= {0, 1}

    def cached(self, row: Row) -> int:
        return row.length - 1

    def states(self, row: Row, start: int = 0) -> dict[int, torch.Tensor]:
        text = torch.tensor(row.tokens[:-1], dtype=torch.long)
        return {0: self.layers[0, text][start:], 1: (self.layers[0, text] + self.layers[1, text.roll(1)])[start:]}


class TableTarget(TargetModel):
    """A table as a target that drafters are built for; it has no files, no tokenizer and no modules."""

    vocab = features = embedding = output = model = text = files = None  # type: ignore[assignment]

    def __init__(self, table: Table, hidden: int = 8) -> None:
        self.vocab, self.features = table.vocab, Words(table.vocab, hidden)
        self.embedding, self.output = self.features.layers[1], self.features.layers[0]


def on_table(table: Table, hidden: int = 8) -> Eagle:
    """A head over a target that is a table, with one token fewer than it."""
    words, ids = Words(table.vocab, hidden), range(table.vocab - 1)
    net = random_head(EagleConfig(hidden, 2, 1, 4, 8, (0, 1), len(ids)), words.layers[0, : len(ids)])
    drafter = Eagle(net.double(), torch.tensor(ids), words.layers[1], words, table.vocab)
    return rounded(drafter)


def rounded(drafter: Eagle) -> Eagle:
    """The last bits of a matrix product depend on its size. Enumeration takes decisions again in other batches, and a
    probability that is 1 in one of them must not be almost 1 in another."""
    logits = drafter.slots.logits
    drafter.slots.logits = lambda state: logits(state).round(decimals=6)  # type: ignore[method-assign]
    return drafter


@torch.no_grad()
def reference(plain: Any, drafter: Eagle, row: Row, drafted: Sequence[int]) -> torch.Tensor:
    """Logits over the draft vocabulary of the token after a row's text and a path of drafted tokens. Every slot is
    computed anew, one after another: true states of the target up to its last token but one, own states beyond."""
    net, text, known = drafter.slots.net, [*row.tokens, *drafted], row.length - 1
    layers = [layer_output(plain, row.tokens, layer) for layer in net.config.features]
    states = list(net.fuse(torch.cat(layers, -1)[:known]))
    keys, values = [], []
    for slot in range(len(text) - 1):
        token, place = torch.tensor(text[slot + 1]), torch.tensor(slot)
        query, key, value = net.project(drafter.slots.embedding[token], states[slot], place)
        keys.append(key)
        values.append(value)
        if slot + 1 < known:
            continue
        many = [torch.stack(part).repeat_interleave(len(query) // len(key), 1) for part in (keys, values)]
        weights = (torch.einsum("hd,thd->ht", query, many[0]) / query.shape[-1] ** 0.5).softmax(-1)
        states.append(net.finish(states[slot], torch.einsum("ht,thd->hd", weights, many[1]).flatten()))
    return net.logits(states[-1])


def layer_output(plain: Any, tokens: Sequence[int], layer: int) -> torch.Tensor:
    """What a layer of the untouched model gives for a text."""
    found: list[torch.Tensor] = []

    def keep(_: Any, __: Any, out: Any) -> None:
        found.append(out[0] if isinstance(out, tuple) else out)

    hook = decoder_layers(plain)[layer].register_forward_hook(keep)
    plain(torch.tensor([list(tokens)]), use_cache=False)
    hook.remove()
    return found[0][0]
