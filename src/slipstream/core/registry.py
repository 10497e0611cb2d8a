"""Names to classes, imported when first asked for. Built-ins and plugins register alike: a name and `module:Class`.

A package adds its own through the entry-point group `slipstream.<kind>s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def register(self, name: str, target: str) -> None:
        self._entries[name] = target

    def names(self) -> list[str]:
        plugins = {point.name: point.value for point in entry_points(group=f"slipstream.{self.kind}s")}
        self._entries = plugins | self._entries
        return sorted(self._entries)

    def get(self, name: str) -> type[T]:
        if not isinstance(name, str):
            from slipstream.core.checks import shown  # which loads torch, and help needs names alone

            raise ValueError(f"the {self.kind} is {shown(name)}; it must be one of {', '.join(self.names())}")
        if name not in self._entries and name not in self.names():
            near = get_close_matches(name, self.names(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no {self.kind} called {name!r}; one of {', '.join(self.names())}{hint}")
        module, _, attribute = self._entries[name].partition(":")
        found: type[T] = getattr(import_module(module), attribute)
        return found
