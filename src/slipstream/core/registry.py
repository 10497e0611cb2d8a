"""Registries from names to classes, which are imported on first use.

Built-ins and plugins register in the same way: a name and `module:Class`. An installed package registers classes
through the entry-point groups `slipstream.drafters`, `slipstream.rules`, `slipstream.policies` and
`slipstream.engines`. A package cannot replace a built-in name. The options of a component are a frozen dataclass, which
`read_options` fills from `key=value` pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

T = TypeVar("T")
SWITCHES = {"true": True, "1": True, "false": False, "0": False}


class Registry(Collection[str], Generic[T]):
    """The registered names as a collection. It includes plugins and names that are registered later."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = f"slipstream.{kind.removesuffix('y') + 'ies' if kind.endswith('y') else kind + 's'}"
        self._entries = dict(entries)
        self._loaded: dict[str, type[T]] = {}  # by `module:Class`

    def register(self, name: str, target: str) -> None:
        """Add a class, given as `module:Class`, without an entry point."""
        self._entries[name] = target

    def names(self) -> list[str]:
        return sorted({point.name for point in entry_points(group=self.group)} | self._entries.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def get(self, name: str) -> type[T]:
        """The class registered under a name. ValueError with the legal names if there is none."""
        if not isinstance(name, str):
            from slipstream.core.checks import shown  # here, because it imports torch, which `--help` does not need

            raise ValueError(f"the {self.kind} is {shown(name)}; it must be one of {', '.join(self.names())}")
        if name in self._entries:
            return self._load(self._entries[name])
        plugin = next((point.value for point in entry_points(group=self.group) if point.name == name), None)
        if plugin is None:
            near = get_close_matches(name, self.names(), 1, cutoff=0.7)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no {self.kind} called {name!r}; one of {', '.join(self.names())}{hint}")
        try:
            return self._load(plugin)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"the {self.kind} {name} cannot be loaded from its plugin {plugin}: {error}") from error

    def _load(self, target: str) -> type[T]:
        if target not in self._loaded:  # every request asks several times
            module, _, attribute = target.partition(":")
            self._loaded[target] = getattr(import_module(module), attribute)
        return self._loaded[target]


@dataclass(frozen=True)
class NoOptions:
    """The options of a component that takes none."""


def read_options(options_type: type[T], options: Mapping[str, Any], component: str) -> T:
    """Build a component's options dataclass. Unknown keys and unreadable values raise ValueError."""
    hints = get_type_hints(options_type)
    legal = [field.name for field in fields(options_type)]  # type: ignore[arg-type]
    for key in options:
        if key not in legal:
            raise ValueError(f"{component} has no option {key!r}; it takes {', '.join(legal) or 'none'}")
    return options_type(**{key: _value(hints[key], value, key, component) for key, value in options.items()})


def _value(hint: Any, value: Any, key: str, component: str) -> Any:
    """Convert a value to its field's type if that is int, float or bool. `X | None` is treated as X."""
    kind = next((part for part in get_args(hint) if part is not NoneType), hint)
    if kind not in (int, float, bool):
        return value
    try:
        return SWITCHES[str(value).lower()] if kind is bool else kind(str(value))
    except (ValueError, KeyError) as error:
        raise ValueError(f"option {key} of {component} is {value!r}; it must be of type {kind.__name__}") from error
