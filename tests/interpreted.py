"""Triton's interpreter, with less to do for each launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patch_once() -> None:
    """Exchange the functions of Triton's language for interpreted ones at the first launch and leave them. The
    interpreter exchanges them and puts them back at every launch, which takes a quarter of the time here."""
    from triton.runtime import interpreter

    patch: Callable[[Any], Any] = interpreter._patch_lang
    scopes: dict[frozenset[str], Any] = {}

    def patched(function: Any) -> Any:
        modules = (interpreter.tl, interpreter.tl.core)
        names = frozenset(value.__name__ for value in function.__globals__.values() if any(value is m for m in modules))
        if names not in scopes:
            scopes[names] = patch(function)
        return interpreter._LangPatchScope()  # nothing is put back

    interpreter._patch_lang = patched
