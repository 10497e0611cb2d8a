"""The options of `staged`: the names of the stages, and options of single stages with the stage's name as prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.registry import read_options
from slipstream.core.tree import Shape

DEFAULT = "ngram,draft_model"
MOST_STAGES = 3


@dataclass(frozen=True)
class StagedOptions:
    """The options of `staged`. Options of a stage are given as `STAGE.KEY=VALUE`."""

    stages: str = DEFAULT  # two or three drafters, as `-d` takes them, with commas between them
    depth: int = 4  # tokens that a stage drafts for the next stage at once, at most
    tree: str | None = None  # candidates of each level of what a stage drafts for the next, such as 3x2x1

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"option depth of staged is {self.depth}; it must be 1 or more")
        if not 2 <= len(self.names) <= MOST_STAGES or not all(self.names):
            raise ValueError(f"stages is {self.stages!r}; it must be two or three drafters, such as {DEFAULT}")
        if self.tree is not None and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", str(self.tree)):
            raise ValueError(f"option tree of staged is {self.tree!r}; it must be widths by level, such as 3x2x1")

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.stages.split(",")]

    @property
    def shape(self) -> Shape | None:
        return None if self.tree is None else Shape.levels([int(width) for width in str(self.tree).split("x")])

    @property
    def inner_depth(self) -> int:
        """`depth`, or the depth of the tree."""
        return self.depth if self.shape is None else self.shape.depth or 0

    def of_stage(self, name: str) -> Mapping[str, Any]:
        """The options of one stage."""
        return {}


@dataclass(frozen=True)
class OptionsOfStages(StagedOptions):
    """The options of `staged` together with options of single stages."""

    by_stage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of_stage(self, name: str) -> Mapping[str, Any]:
        return self.by_stage.get(name, {})


def read_staged_options(options: Mapping[str, Any], component: str) -> StagedOptions:
    """Read `key=value` pairs. An option with a stage's name as prefix belongs to that stage."""
    names = StagedOptions(str(options.get("stages", DEFAULT))).names
    by_stage: dict[str, dict[str, Any]] = {name: {} for name in names}
    own: dict[str, Any] = {}
    for key, value in options.items():
        owner = next((name for name in names if key.startswith(f"{name}.")), None)
        if owner is None:
            own[key] = value
        else:
            by_stage[owner][key.removeprefix(f"{owner}.")] = value
    read = read_options(StagedOptions, own, component)
    return OptionsOfStages(read.stages, read.depth, read.tree, by_stage)
