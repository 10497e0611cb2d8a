"""Random dflash stacks for tiny targets and for tables, and their laws by a plain computation over whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from heads import Words, layer_output
from slipstream.core.types import Row
from slipstream.drafters.dflash.drafter import Dflash
from slipstream.drafters.dflash.network import DflashConfig, DflashNet
from slipstream.models.run.table_model import Table
from slipstream.models.run.torch_model import TorchModel


def random_stack(config: DflashConfig, output: torch.Tensor, seed: int = 5) -> DflashNet:
    """Weights large enough for every part of it to matter."""
    torch.manual_seed(seed)
    net = DflashNet(config, output)
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0, 0.3) if weight.ndim > 1 else weight.uniform_(0.5, 1.5)
        net.scale.uniform_(0.5, 1.5)
    return net.eval().requires_grad_(False)


def stack(model: Any, ids: Sequence[int], features: Sequence[int] = (0, 2), block: int = 4, **layout: Any) -> DflashNet:
    output = model.get_output_embeddings().weight.detach()[list(ids)]
    config = DflashConfig(output.shape[1], 4, 2, 8, 48, 2, block, tuple(features), len(ids), **layout)
    net = random_stack(config, output).to(output)
    net.mask = model.get_input_embeddings().weight.detach()[config.mask_token]
    return net


def dflash(target: TorchModel, ids: Sequence[int] | None = None, **more: Any) -> Dflash:
    ids = range(target.vocab) if ids is None else ids
    net = stack(target.model, ids, **more)
    target.declare(net.config.features)
    embedding = target.model.get_input_embeddings().weight.detach()
    return Dflash(net, torch.tensor(ids, device=embedding.device), embedding, target, target.vocab)


def on_table(table: Table, hidden: int = 8) -> Dflash:
    """A stack with a Markov head over a target that is a table, with one token fewer than it."""
    words, ids = Words(table.vocab, hidden), range(table.vocab - 1)
    config = DflashConfig(hidden, 2, 1, 4, 8, 2, 5, (0, 1), len(ids), markov=16)
    net = random_stack(config, words.layers[0, : len(ids)])
    return rounded(Dflash(net.double(), torch.tensor(ids), words.layers[1], words, table.vocab))


def rounded(drafter: Dflash) -> Dflash:
    """The last bits of a matrix product depend on its size, and enumeration repeats decisions in other batches."""
    logits = drafter.slots.outputs
    drafter.slots.outputs = lambda rows, depth: logits(rows, depth).round(decimals=6)  # type: ignore[method-assign]
    return drafter


@torch.no_grad()
def reference(plain: Any, drafter: Dflash, row: Row, token: int | None = None) -> torch.Tensor:
    """The logits [block, draft_vocab] after a row's text, from the untouched target, without a cache. `token`: the one
    before each slot, which matters to a Markov head."""
    net, known = drafter.slots.net, row.length - 1
    layers = [layer_output(plain, row.tokens, layer) for layer in net.config.features]
    fused = net.fuse(torch.cat(layers, -1)[:known])
    x = net.inputs(drafter.slots.embedding[row.tokens[-1]], fused[-1])
    before, own = torch.arange(known), known + torch.arange(net.config.slots)
    for layer in net.stack:
        query = layer.queries(x, own, net.frequency)
        context = layer.context_keys_values(fused, before, net.frequency)
        slots = layer.keys_values(x, own, net.frequency)
        group = net.config.heads // net.config.kv_heads
        keys, values = (torch.cat(parts).repeat_interleave(group, 1) for parts in zip(context, slots, strict=True))
        weights = (torch.einsum("qhd,khd->hqk", query, keys) / net.config.head_dim**0.5).softmax(-1)
        x = layer.finish(x, torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
    slots = x[net.config.first :]
    return net.logits(slots, None if token is None else drafter.slots.embedding[token].expand_as(slots))
