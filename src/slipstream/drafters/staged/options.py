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
class StageOptions:
    """One stage: the name of a drafter, as `-d` takes it, and its own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StagedOptions:
    """The options of `staged`. Options of a stage are given as `STAGE.KEY=VALUE`."""

    stages: tuple[StageOptions, ...] = tuple(map(StageOptions, DEFAULT.split(",")))  # names with commas between them
    depth: int = 4  # tokens that a stage drafts for the next stage at once, at most
    tree: str | None = None  # candidates of each level of what a stage drafts for the next, such as 3x2x1

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"option depth of staged is {self.depth}; it must be 1 or more")
        if not 2 <= len(self.stages) <= MOST_STAGES or not all(stage.name for stage in self.stages):
            names = ",".join(stage.name for stage in self.stages)
            raise ValueError(f"stages is {names!r}; it must be two or three drafters, such as {DEFAULT}")
        if self.tree is not None and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", str(self.tree)):
            raise ValueError(f"option tree of staged is {self.tree!r}; it must be widths by level, such as 3x2x1")

    @property
    def shape(self) -> Shape | None:
        return None if self.tree is None else Shape.levels([int(width) for width in str(self.tree).split("x")])

    @property
    def inner_depth(self) -> int:
        """`depth`, or the depth of the tree."""
        return self.depth if self.shape is None else self.shape.depth or 0

    @staticmethod
    def read(options: Mapping[str, Any], name: str) -> StagedOptions:
        """Read `key=value` pairs. An option with a stage's name as prefix belongs to that stage."""
        names = str(options.get("stages", DEFAULT)).replace(" ", "").split(",")
        own = {stage: {} for stage in names}  # type: dict[str, dict[str, Any]]
        rest: dict[str, Any] = {}
        for key, value in options.items():
            owner = next((stage for stage in names if stage and key.startswith(f"{stage}.")), None)
            if owner is None:
                rest[key] = value
            else:
                own[owner][key.removeprefix(f"{owner}.")] = value
        stages = tuple(StageOptions(stage, own[stage]) for stage in names)
        return read_options(StagedOptions, {**rest, "stages": stages}, name)
