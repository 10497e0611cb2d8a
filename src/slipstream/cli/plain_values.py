"""Reads plain values of options without pydantic.

typer 0.29 and later read every value, also that of an option that was not given, with pydantic. Importing it and making
its validators takes 0.2 s and 15 MB. Most values need none of it: they are absent, have their type already, or are
texts and numbers in their usual form. All others go typer's way.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
NUMBER = re.compile(r"(0|-?[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
OTHER = object()


class PlainCommand(TyperCommand):
    """A command that reads plain values itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)


class PlainGroup(TyperGroup):
    """A group of commands that reads plain values of its own options itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _read_plainly(params: list[Any]) -> None:
    for param in params:
        if hasattr(param, "get_runtime_param"):  # not before typer 0.29
            param.get_runtime_param = partial(PlainReader, param.get_runtime_param)


class PlainReader:
    """Takes the place of typer's reader, which it asks for values that are not plain."""

    def __init__(self, full: Any) -> None:
        self._full = full

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        read = _read(value, param)
        return self._full().coerce(value, param=param, ctx=ctx) if read is OTHER else read


def _read(value: Any, param: Any) -> Any:
    """What typer makes of a plain value, or OTHER."""
    about = getattr(getattr(param, "type_descriptor", None), "parameter_info", None)
    if about is None:  # another typer than this was written for
        return OTHER
    if value is None:
        return () if param.multiple or param.nargs == -1 else None
    if about.parser is not None or about.min is not None or about.max is not None or about.path_type is not None:
        return OTHER
    kind = param.type_descriptor.annotation
    if isinstance(value, list | tuple):
        single = {list[str]: str, list[int]: int}.get(kind)
        values = [_single(item, single) for item in value]
        return OTHER if OTHER in values else values
    return _single(value, kind)


def _single(value: Any, kind: Any) -> Any:
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    if kind is int and type(value) is str and INTEGER.fullmatch(value):
        return int(value)
    if kind is float and type(value) is str and NUMBER.fullmatch(value):
        return float(value)
    return OTHER
