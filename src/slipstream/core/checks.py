"""Checks of what a user passed in: a value of the type a field needs, or ValueError with one sentence.

Requests come from any thread and are decoded in another one, beside other requests. So a wrong type is refused where
the request is made. Integers and numbers of other libraries (numpy, torch) become Python's own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slipstream.core.array_types import Tensor

SHOWN = 60  # characters of a wrong value that an error repeats


def shown(value: object) -> str:
    """A value as an error repeats it: one line, not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a class may have any repr
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def integer(name: str, value: Any) -> int:
    """`value` as an int. Floats and truth values are refused, also where they are whole numbers."""
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except Exception:  # a class may raise anything
        pass
    raise ValueError(f"{name} is {shown(value)}; it must be an integer")


def number(name: str, value: Any) -> float:
    """`value` as a float; strings and truth values are refused."""
    if type(value) is float:
        return value
    try:
        if not isinstance(value, bool | str | bytes | bytearray):
            return float(value)
    except Exception:  # a class may raise anything
        pass
    raise ValueError(f"{name} is {shown(value)}; it must be a number")


def boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} is {shown(value)}; it must be True or False")


def integers(name: str, values: Any) -> list[int]:
    """A list, set, tuple, array or tensor of integers."""
    values = listed(values)
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {shown(values)}; it must be a list of integers")
    return [value if type(value) is int else integer(f"an element of {name}", value) for value in values]


def strings(name: str, values: Any) -> tuple[str, ...]:
    """One string or several; None is none."""
    if values is None:
        return ()
    if isinstance(values, str):
        return (values,)
    legal = f"{name} is {shown(values)}; it must be a string or a list of strings"
    if isinstance(values, bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise ValueError(legal)
    several = tuple(values)
    if not all(isinstance(value, str) for value in several):
        raise ValueError(legal)
    return several


def listed(values: Any) -> Any:
    """An array or a tensor as a list; anything else as it is."""
    if not isinstance(values, np.ndarray | Tensor):
        return values
    try:
        return values.tolist()
    except Exception:  # such as a sparse tensor
        return values
