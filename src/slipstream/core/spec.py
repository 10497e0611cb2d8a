"""A component's name with its options in one text: `name` or `name(key=value, key=value)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

SPEC = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """The name and the options. ValueError if the text has another form."""
    match = SPEC.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form name or name(key=value, key=value)")
    name, inner = match.groups()
    options: dict[str, str] = {}
    for part in (inner or "").split(",") if (inner or "").strip() else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value):
            raise ValueError(f"{text!r} is not of the form name or name(key=value, key=value)")
        options[key] = value
    return name, options


@lru_cache
def spec_name(text: str) -> str:
    """The name alone; the text itself if it is no spec."""
    match = SPEC.fullmatch(text)
    return match[1] if match else text


def spec_text(name: str, options: Mapping[str, str]) -> str:
    """The text of a name with its options."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})" if options else name
