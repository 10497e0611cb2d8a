"""A DFlash stack in its folder: saved after training, loaded for a target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.dflash.network import DflashConfig, DflashNet
from slipstream.drafters.files.net_folder import load_net, save_net

KIND = "dflash"


def save_stack(
    folder: Path,
    net: DflashNet,
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str = "int8",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a stack. `about`: further entries of its configuration, such as its origin and its measured tau."""
    save_net(folder, KIND, net, net.config, draft_ids, precision, about)


def load_stack(
    folder: Path,
    embedding: Float[Tensor, "vocab hidden"],
    output: Float[Tensor, "vocab hidden"],
    vocab: int | None = None,
) -> tuple[DflashNet, Int[Tensor, " draft_vocab"]]:
    """A stack for the target with this embedding and output matrix, in their type and on their device, and its ids."""
    net, ids = load_net(folder, KIND, DflashConfig.of, _net, embedding, output, vocab)
    token = net.config.mask_token
    if net.config.layout == "masked":
        if not 0 <= token < len(embedding):
            raise ValueError(f"the mask token of {folder} is {token}; the target has tokens 0 to {len(embedding) - 1}")
        net.mask = embedding[token]
    return net, ids


def _net(config: DflashConfig, rows: Float[Tensor, "draft_vocab hidden"]) -> DflashNet:
    return DflashNet(config, None if config.own_output else rows)
