"""The options of `overlapped`: the drafter that it runs, and that drafter's options with its name as prefix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.registry import read_options

DEFAULT = "draft_model"


@dataclass(frozen=True)
class OverlappedOptions:
    """The options of `overlapped`. Options of its drafter are given as `DRAFTER.KEY=VALUE`."""

    drafter: str = DEFAULT  # as `-d` takes it; it must not need the target's hidden states


@dataclass(frozen=True)
class OptionsWithDrafter(OverlappedOptions):
    """The options of `overlapped` together with those of its drafter."""

    inner: Mapping[str, Any] = field(default_factory=dict)


def read_overlapped_options(options: Mapping[str, Any], component: str) -> OptionsWithDrafter:
    """Read `key=value` pairs. An option with the drafter's name as prefix belongs to that drafter."""
    prefix = f"{options.get('drafter', DEFAULT)}."
    inner = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
    own = {key: value for key, value in options.items() if not key.startswith(prefix)}
    return OptionsWithDrafter(read_options(OverlappedOptions, own, component).drafter, inner)
