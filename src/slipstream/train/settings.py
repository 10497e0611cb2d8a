"""The options of a training: those of every method, and how they are told apart from the method's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Training:
    """What holds for every method."""

    steps: int = 4000
    tokens: int = 16384  # in a batch
    rate: float = 1e-3
    vocab: int = 8192  # tokens that can be drafted: the ones the target says most often
    answer: int = 192  # longest answer
    prompt: int = 448  # longest prompt
    temperatures: str = "0,1"  # each prompt is answered at each
    rows: int = 0  # prompts answered at once; chosen by the device if 0
    seed: int = 0
    precision: str = "int8"  # of the stored weights: int8 or bf16
    start: str = ""  # a trained drafter to go on from: its folder or its name

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "vocab", "answer", "prompt"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.precision not in ("int8", "bf16"):
            raise ValueError(f"precision is {self.precision!r}; it must be int8 or bf16")
        _ = self.warmth

    @property
    def warmth(self) -> list[float]:
        try:
            found = [float(part) for part in self.temperatures.split(",")]
        except ValueError as error:
            raise ValueError(f"temperatures is {self.temperatures!r}; write numbers such as 0,1") from error
        if min(found) < 0:
            raise ValueError(f"temperatures is {self.temperatures!r}; none may be below 0")
        return found


def sort_options(kind: Any, options: Mapping[str, Any]) -> tuple[Training, Any]:
    """Options sorted to those of every method and the method's own; unknown ones are refused by name."""
    own = {f.name: f for f in fields(kind.config)}
    common = {f.name: f for f in fields(Training)}
    assert own.keys().isdisjoint(common), "a method's options must not hide those of every method"
    values: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in options.items():
        field, place = (own[key], values[1]) if key in own else (common.get(key), values[0])
        if field is None:
            raise ValueError(f"{kind.name} has no option {key!r}; it takes {', '.join([*own, *common])}")
        try:
            place[key] = {"int": int, "float": float}.get(str(field.type), str)(value)
        except ValueError as error:
            raise ValueError(f"option {key} of {kind.name} is {value!r}; it must be of type {field.type}") from error
    return Training(**values[0]), kind.config(**values[1])


def agree(work: Path, wanted: dict[str, Any]) -> None:
    """A folder goes on with the settings it began with."""
    path = work / "settings.json"
    if path.exists():
        began = json.loads(path.read_text())
        changed = sorted(key for key in wanted.keys() | began.keys() if wanted.get(key) != began.get(key))
        if changed:
            names = ", ".join(f"{key} was {began.get(key)!r}" for key in changed)
            raise ValueError(f"{work.parent} holds a training with other settings ({names}); name a new folder")
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(wanted, indent=2))
