"""A training that goes on from a trained drafter: its weights as they load, in float32, and its draft vocabulary.

What is stored are whole numbers or bfloat16. Training begins with the very numbers a drafter would draft with, so its
loss before the first step is that of the folder. The optimizer begins anew, and the rate climbs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slipstream.core.array_types import Int, Tensor
from slipstream.drafters.folder import read
from slipstream.drafters.shipped import shipped, shipped_for
from slipstream.models.sources.load import ModelFiles
from slipstream.train.method import Method


@dataclass(frozen=True, eq=False)
class Start:
    folder: Path
    config: dict[str, Any]  # what the folder says of itself
    weights: dict[str, Tensor]
    ids: Int[Tensor, " draft_vocab"]

    @property
    def sha256(self) -> str:
        return str(self.config["sha256"])

    def complete(self, options: Mapping[str, Any], kind: Any) -> dict[str, Any]:
        """Options with the folder's own sizes where none are given; others are refused."""
        names = {f.name for f in fields(kind.config)} & self.config.keys()
        sizes = {name: _spoken(self.config[name]) for name in names} | {"vocab": str(len(self.ids))}
        for name in sorted(sizes.keys() & options.keys()):
            if str(options[name]) != sizes[name]:
                raise ValueError(
                    f"{name} is {options[name]}, and the drafter in {self.folder} has {sizes[name]}; "
                    f"a training that starts from it keeps that, so leave {name} out"
                )
        return sizes | dict(options)

    def lend(self, student: Method) -> None:
        """Put the weights into a network of the same shape."""
        for name, ours in student.shape.items():
            if (theirs := self.config.get(name, ours)) != ours:
                raise self._misfit(name, _spoken(theirs), _spoken(ours))
        own = student.net.state_dict()
        for name in sorted(own.keys() | self.weights.keys()):
            theirs, ours = (tuple(part[name].shape) if name in part else "absent" for part in (self.weights, own))
            if theirs != ours:
                raise self._misfit(name, theirs, ours)
        student.net.load_state_dict({name: weight.float() for name, weight in self.weights.items()})

    def check_ids(self, vocab: int) -> None:
        """The draft vocabulary must name tokens of the target."""
        if not len(self.ids) or int(self.ids.max()) >= vocab:
            last = int(self.ids.max()) if len(self.ids) else None
            raise self._misfit("the last drafted token", last, f"at most {vocab - 1}")

    def _misfit(self, name: str, theirs: Any, ours: Any) -> ValueError:
        return ValueError(
            f"a drafter for this target cannot start from {self.folder}: {name} is {theirs} there and {ours} here"
        )


def find_start(name: str, method: str, target: ModelFiles) -> Start | None:
    """The trained drafter of this method that a name stands for: the one shipped for the target, where the name is the
    method's, a shipped one by its own name, or a folder."""
    if not name:
        return None
    folder = shipped_for(method, target.name, target.sha256) if name == method else shipped().get(name)
    folder = folder or Path(name).expanduser()
    if not folder.is_dir():
        names = ", ".join(shipped())
        raise ValueError(f"start is {name!r}, which is no trained drafter; name a folder, {method} or one of {names}")
    return Start(folder, *read(folder, method))


def _spoken(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
