"""The default model, loaded once however many tests ask for it."""

from __future__ import annotations

from functools import cache

from slipstream.engines.native.build import Target, build_target


@cache
def target() -> Target:
    return build_target("smollm2-135m")
