"""An EAGLE head in its folder: saved after training, loaded for a target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.drafters.files.net_folder import load_net, save_net

KIND = "eagle"


def save_head(
    folder: Path,
    net: EagleNet,
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str = "int8",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a head. `about`: further entries of its configuration, such as its origin and its measured tau."""
    save_net(folder, KIND, net, net.config, draft_ids, precision, about)


def load_head(
    folder: Path,
    embedding: Float[Tensor, "vocab hidden"],
    output: Float[Tensor, "vocab hidden"],
    vocab: int | None = None,
) -> tuple[EagleNet, Int[Tensor, " draft_vocab"]]:
    """A head for the target with this embedding and output matrix, in their type and on their device, and its ids."""
    return load_net(folder, KIND, EagleConfig.of, _net, embedding, output, vocab)


def _net(config: EagleConfig, rows: Float[Tensor, "draft_vocab hidden"]) -> EagleNet:
    return EagleNet(config, None if config.own_output else rows)
