"""Engines take requests and return text. All have one interface and can be audited and benchmarked.

`native` is this project's own engine: any Hugging Face model, exact, with rows that advance at different rates. The
others are peers: other software that is used through its public interface, with its own speculation.
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
    """Open an engine with a model. `verify` and `depth` None: the engine's own choice. `options`: of the drafter, or of
    the peer. `loading`: how the model is loaded (dtype, device, context)."""
    kind: Any = engines.get(name)
    check_installed(name, options or {})
    chosen = {} if verify is None else {"verify": verify}
    engine: Engine = kind(model, drafter, depth=depth, options=dict(options or {}), **chosen, **loading)
    return engine
