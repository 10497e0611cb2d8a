"""How shapes and types are checked while tests run: an int is welcome where a float is asked for."""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

CHECK_THEMSELVES = {"Sampling.__init__"}  # it takes more types than it holds

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    return function if function.__qualname__ in CHECK_THEMSELVES else _checked(function)
