"""Names to classes, imported when first asked for. Built-ins and plugins register alike: a name and `module:Class`.

An installed package adds its own through the entry-point group `slipstream.<kind>s`, of policies `slipstream.policies`.
Built-in names cannot be replaced by a package.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Collection[str], Generic[T]):
    """The registered names as a collection, which sees plugins and names registered later too."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = f"slipstream.{kind.removesuffix('y') + 'ies' if kind.endswith('y') else kind + 's'}"
        self._entries = dict(entries)

    def register(self, name: str, target: str) -> None:
        """Add a class by hand, as `module:Class`; an entry point of a package does the same."""
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
        """The class registered under a name; ValueError with the legal names where there is none."""
        if not isinstance(name, str):
            from slipstream.core.checks import shown  # which loads torch, and help needs names alone

            raise ValueError(f"the {self.kind} is {shown(name)}; it must be one of {', '.join(self.names())}")
        if name in self._entries:
            return self._load(self._entries[name])
        plugin = next((point.value for point in entry_points(group=self.group) if point.name == name), None)
        if plugin is None:
            near = get_close_matches(name, self.names(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no {self.kind} called {name!r}; one of {', '.join(self.names())}{hint}")
        try:
            return self._load(plugin)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"the {self.kind} {name} cannot be loaded from its plugin {plugin}: {error}") from error

    def _load(self, target: str) -> type[T]:
        module, _, attribute = target.partition(":")
        loaded: type[T] = getattr(import_module(module), attribute)
        return loaded
