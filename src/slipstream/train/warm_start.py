"""Starts a training from a trained drafter: its weights in float32 and its draft vocabulary.

Stored weights are int8 or bfloat16. Training starts from the dequantised weights that the drafter would draft with, so
the loss before the first step is that of the folder. The optimizer state and the learning rate schedule start anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slipstream.core.array_types import Int, Tensor
from slipstream.drafters.files.folder import read
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.models.sources.load import ModelFiles
from slipstream.train.method import Method


@dataclass(frozen=True, eq=False)
class TrainedDrafter:
    """A folder of a trained drafter."""

    folder: Path
    config: dict[str, Any]  # the folder's configuration
    weights: dict[str, Tensor]
    ids: Int[Tensor, " draft_vocab"]

    @property
    def sha256(self) -> str:
        return str(self.config["sha256"])

    def with_sizes(self, options: Mapping[str, Any], method: Any) -> dict[str, Any]:
        """Add the folder's sizes to the options; refuse options that name other sizes. Parts that the folder does not
        have may be added where the method says so."""
        names = {f.name for f in fields(method.options)} & self.config.keys()
        names -= {name for name in method.can_add if not self.config.get(name)}
        sizes = {name: _as_text(self.config[name]) for name in names} | {"vocab": str(len(self.ids))}
        for name in sorted(sizes.keys() & options.keys()):
            if str(options[name]) != sizes[name]:
                raise ValueError(
                    f"{name} is {options[name]}, and the drafter in {self.folder} has {sizes[name]}; "
                    f"a training that starts from it keeps that, so leave {name} out"
                )
        return sizes | dict(options)

    def copy_weights_to(self, student: Method) -> None:
        """Load the weights into a network of the same shape. Parts that the folder does not have keep theirs."""
        added = {name for name in student.can_add if not self.config.get(name)}
        for name, needed in student.shape.items():
            if (stored := self.config.get(name, needed)) != needed and name not in added:
                raise self._mismatch(name, _as_text(stored), _as_text(needed))
        own = student.net.state_dict()
        new = {name for name in own if name.partition(".")[0] in added}
        for name in sorted((own.keys() | self.weights.keys()) - new):
            stored, needed = (tuple(part[name].shape) if name in part else "absent" for part in (self.weights, own))
            if stored != needed:
                raise self._mismatch(name, stored, needed)
        kept = {name: own[name] for name in new}
        student.net.load_state_dict(kept | {name: weight.float() for name, weight in self.weights.items()})

    def check_ids(self, vocab: int) -> None:
        """The draft vocabulary must name tokens of the target."""
        if not len(self.ids) or int(self.ids.max()) >= vocab:
            last = int(self.ids.max()) if len(self.ids) else None
            raise self._mismatch("the last drafted token", last, f"at most {vocab - 1}")

    def _mismatch(self, name: str, stored: Any, needed: Any) -> ValueError:
        return ValueError(
            f"a drafter for this target cannot start from {self.folder}: {name} is {stored} there and {needed} here"
        )


def find_trained(name: str, method: str, target: ModelFiles) -> TrainedDrafter | None:
    """The trained drafter of this method to start from; None if no name is given.

    `name`: a folder, a shipped drafter, or the method's own name for the drafter that is shipped for the target."""
    if not name:
        return None
    folder = shipped_for(method, target.name, target.sha256) if name == method else shipped().get(name)
    folder = folder or Path(name).expanduser()
    if not folder.is_dir():
        names = ", ".join(shipped())
        raise ValueError(f"start is {name!r}, which is no trained drafter; name a folder, {method} or one of {names}")
    return TrainedDrafter(folder, *read(folder, method))


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
