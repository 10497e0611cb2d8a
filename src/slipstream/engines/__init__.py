"""Engines: what takes requests and gives text. One interface; all of them can be audited and measured."""

from __future__ import annotations

from slipstream.core.registry import Registry
from slipstream.engines.base import Engine

engines: Registry[Engine] = Registry("engine", {"native": "slipstream.engines.native.engine:NativeEngine"})
