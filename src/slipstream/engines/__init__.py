"""Engines: what takes requests and gives text. One interface; all of them can be audited and measured.

`native` is this project's own: any Hugging Face model, rows that advance at different rates, everything exact. The
others are peers, run through what they offer to everybody, with their own speculation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.core.registry import Registry
from slipstream.engines.base import Engine
from slipstream.engines.extras import check_installed

engines: Registry[Engine] = Registry(
    "engine",
    {
        "native": "slipstream.engines.native.engine:NativeEngine",
        "transformers": "slipstream.engines.transformers.engine:TransformersEngine",
        "llamacpp": "slipstream.engines.llamacpp.engine:LlamaCppEngine",
        "vllm": "slipstream.engines.vllm.engine:VllmEngine",
    },
)


def open_engine(
    name: str,
    model: str,
    drafter: str | None = "none",
    verify: str | None = None,
    depth: int | None = None,
    options: Mapping[str, str] | None = None,
    **loading: Any,
) -> Engine:
    """An engine with a model in it. `verify` and `depth` None are the engine's own choice; `options` go to whoever
    drafts, and at a peer to the peer; `loading` says how the model is loaded (dtype, device, context)."""
    kind: Any = engines.get(name)
    check_installed(name, options or {})
    chosen = {} if verify is None else {"verify": verify}
    engine: Engine = kind(model, drafter, depth=depth, options=dict(options or {}), **chosen, **loading)
    return engine
