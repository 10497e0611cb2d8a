"""A drafter's network in its folder: saved after training, found and loaded for a target.

Embeddings and output rows are the target's and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import TargetModel
from slipstream.drafters.files.folder import CONFIG, WEIGHTS, read, write
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.models.sources.folder import read_json

Net = TypeVar("Net", bound=nn.Module)
Stored = TypeVar("Stored", bound="StoredConfig")


class StoredConfig:
    """Base of frozen dataclasses that are stored as JSON: the sizes of a network."""

    hidden: int
    draft_vocab: int
    own_output = False  # whether output rows are stored with it

    @classmethod
    def of(cls: type[Stored], values: Mapping[str, Any]) -> Stored:
        """Read a config from a folder's JSON. Other keys are ignored."""
        own = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        missing = {name for name, f in own.items() if f.default is MISSING} - values.keys()
        if missing:
            raise ValueError(f"the head's config lacks {', '.join(sorted(missing))}")
        known = {name: values[name] for name in own if name in values}
        return cls(**{name: tuple(x) if isinstance(x, list) else x for name, x in known.items()})

    def as_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


def save_net(
    folder: Path,
    kind: str,
    net: nn.Module,
    config: StoredConfig,
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str = "int8",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a network. `about`: further entries of its configuration, such as its origin and its measured tau."""
    _check_ids(draft_ids, config.draft_vocab)
    write(folder, kind, net.state_dict(), draft_ids, precision, config.as_dict(), about)


def load_net(
    folder: Path,
    kind: str,
    parse: Callable[[dict[str, Any]], Stored],
    make: Callable[[Stored, Float[Tensor, "draft_vocab hidden"]], Net],
    embedding: Float[Tensor, "vocab hidden"],
    output: Float[Tensor, "vocab hidden"],
    vocab: int | None = None,
) -> tuple[Net, Int[Tensor, " draft_vocab"]]:
    """A network for a target, in the type and on the device of its output matrix, and the draft vocabulary.

    `make` gets the config that `parse` read from the JSON, and the output rows of the draft vocabulary. `vocab`: use so
    many tokens of it, those with the lowest ids."""
    stored, weights, ids = read(folder, kind)
    config = parse(stored)
    if config.hidden != embedding.shape[1]:
        raise ValueError(
            f"the head in {folder} is for a target {config.hidden} wide, and this one is {embedding.shape[1]}"
        )
    _check_ids(ids, config.draft_vocab, len(output))
    if vocab is not None and vocab < len(ids):
        if config.own_output:
            raise ValueError(f"the head in {folder} has output rows of its own, so its vocabulary cannot be trimmed")
        ids, config = ids[:vocab], replace(config, draft_vocab=vocab)  # type: ignore[type-var]
    net = make(config, output[ids.to(output.device)])
    placed = {name: weight.to(output.device, output.dtype) for name, weight in weights.items()}
    try:
        net.load_state_dict(placed, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{folder / WEIGHTS} does not fit its {CONFIG}: {error}") from error
    for buffer in net.buffers():  # those that are not stored
        buffer.data = buffer.to(output.device)
    return net.eval().requires_grad_(False), ids.to(output.device)


def trained_folder(kind: str, target: TargetModel, model: str | None) -> Path:
    """The folder of a head: the one named by the option `model`, or the one shipped for the target."""
    if model is not None:
        return shipped().get(model, Path(model))
    folder = shipped_for(kind, target.files.name, target.files.sha256)
    if folder is None:
        raise ValueError(
            f"no {kind} head is shipped for {target.files.name}; `slipstream train {kind}` makes one for -d FOLDER"
        )
    return folder


def check_target(folder: Path, target: TargetModel) -> None:
    """Refuse a head that was trained for another target, as far as the hashes of both are known.

    Quantised weights have another hash than the weights that they were made from, so they are not compared."""
    stored = read_json(folder / CONFIG)
    trained_for, name = stored.get("target_sha256"), stored.get("target")
    try:
        files = target.files
    except ValueError:  # a model that was made in memory
        return
    if not (trained_for and files.sha256) or files.quantised or files.name == name or files.sha256 == trained_for:
        return
    raise ValueError(
        f"the head in {folder} was trained for {name} (sha256 {trained_for[:12]}), and {files.name} is another target "
        f"(sha256 {files.sha256[:12]}); train one for it with `slipstream train`"
    )


def _check_ids(ids: Tensor, count: int, vocab: int | None = None) -> None:
    """Check that ids ascend: the first of equally probable tokens is then the same in both vocabularies."""
    if len(ids) != count or bool((ids[1:] <= ids[:-1]).any()):
        raise ValueError(f"the draft vocabulary must be {count} token ids in ascending order; it holds {len(ids)}")
    if vocab is not None and not 0 <= int(ids[0]) <= int(ids[-1]) < vocab:
        raise ValueError(f"the draft vocabulary reaches token {int(ids[-1])}; the target has tokens 0 to {vocab - 1}")
