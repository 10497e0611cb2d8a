"""Options of a component from `key=value` words: the fields of a frozen dataclass that lies beside the component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")
SWITCHES = {"true": True, "1": True, "false": False, "0": False}


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
    """A value as its field's type; `X | None` reads as X. Types other than int, float and bool take it as it is."""
    kind = next((part for part in get_args(hint) if part is not NoneType), hint)
    if kind not in (int, float, bool):
        return value
    try:
        return SWITCHES[str(value).lower()] if kind is bool else kind(str(value))
    except (ValueError, KeyError) as error:
        raise ValueError(f"option {key} of {component} is {value!r}; it must be of type {kind.__name__}") from error
