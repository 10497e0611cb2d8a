"""An EAGLE head in its folder: saved after training, loaded for a target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.drafters.files.folder import CONFIG, WEIGHTS, read, write

KIND = "eagle"


def save_head(
    folder: Path,
    net: EagleNet,
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str = "int8",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a head. `about`: further entries of its configuration, such as its origin and its measured tau."""
    _check_ids(draft_ids, net.config.draft_vocab)
    write(folder, KIND, net.state_dict(), draft_ids, precision, net.config.as_dict(), about)


def load_head(
    folder: Path, embedding: Float[Tensor, "vocab hidden"], output: Float[Tensor, "vocab hidden"]
) -> tuple[EagleNet, Int[Tensor, " draft_vocab"]]:
    """A head for the target with this embedding and output matrix, in their type and on their device, and its ids."""
    stored, weights, ids = read(folder, KIND)
    config = EagleConfig.of(stored)
    if config.hidden != embedding.shape[1]:
        raise ValueError(
            f"the head in {folder} is for a target {config.hidden} wide, and this one is {embedding.shape[1]}"
        )
    _check_ids(ids, config.draft_vocab, len(output))
    net = EagleNet(config, None if config.own_output else output[ids.to(output.device)])
    placed = {name: weight.to(output.device, output.dtype) for name, weight in weights.items()}
    try:
        net.load_state_dict(placed, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{folder / WEIGHTS} does not fit its {CONFIG}: {error}") from error
    net.get_buffer("frequency").data = net.get_buffer("frequency").to(output.device)
    return net.eval().requires_grad_(False), ids.to(output.device)


def _check_ids(ids: Tensor, count: int, vocab: int | None = None) -> None:
    """Check that ids ascend: the first of equally probable tokens is then the same in both vocabularies."""
    if len(ids) != count or bool((ids[1:] <= ids[:-1]).any()):
        raise ValueError(f"the draft vocabulary must be {count} token ids in ascending order; it holds {len(ids)}")
    if vocab is not None and not 0 <= int(ids[0]) <= int(ids[-1]) < vocab:
        raise ValueError(f"the draft vocabulary reaches token {int(ids[-1])}; the target has tokens 0 to {vocab - 1}")
