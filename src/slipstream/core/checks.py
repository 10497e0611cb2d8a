"""Type checks of user input: each function returns the converted value or raises ValueError with one sentence.

A request is decoded in another thread, together with other requests. So a wrong type is refused in the caller's thread,
where the request is made. Integers and floats of numpy and torch are converted to Python's own types.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slipstream.core.array_types import Tensor

SHOWN = 60  # characters of a wrong value that an error message quotes


def shown(value: object) -> str:
    """A value as an error message quotes it: one line of at most `SHOWN` characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a class may have any repr
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def integer(name: str, value: Any) -> int:
    """`value` as an int. Floats and booleans are refused, even 1.0 and True."""
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except Exception:  # a class may raise anything
        pass
    raise ValueError(f"{name} is {shown(value)}; it must be an integer")


def number(name: str, value: Any) -> float:
    """`value` as a float. Strings and booleans are refused."""
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
    elements = list[Any](values)
    if set(map(type, elements)) <= {int}:  # most often; a prompt may be long
        return elements
    return [integer(f"an element of {name}", value) for value in elements]


def strings(name: str, values: Any) -> tuple[str, ...]:
    """A string or an iterable of strings as a tuple. None gives an empty tuple."""
    if values is None:
        return ()
    if isinstance(values, str):
        return (values,)
    message = f"{name} is {shown(values)}; it must be a string or a list of strings"
    if isinstance(values, bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise ValueError(message)
    texts = tuple(values)
    if not all(isinstance(value, str) for value in texts):
        raise ValueError(message)
    return texts


def listed(values: Any) -> Any:
    """A numpy array or a tensor as a list. Anything else is returned unchanged."""
    if not isinstance(values, np.ndarray | Tensor):
        return values
    try:
        return values.tolist()
    except Exception:  # such as a sparse tensor
        return values
