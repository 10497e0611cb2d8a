"""Engines take requests and return text. All have one interface and can be audited and benchmarked.

`native` is this project's own engine: any Hugging Face model, exact, with rows that advance at different rates. The
others are peers: other software that is used through its public interface, with its own speculation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipstream.core.registry import Registry
from slipstream.engines.base import Engine
from slipstream.engines.extras import check_installed

if TYPE_CHECKING:  # the command line names the engines in its help, without loading torch
    from slipstream.plan.ir.nodes import Plan

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
    plan: Plan | None = None,
    **loading: Any,
) -> Engine:
    """Open an engine with a model. `verify` and `depth` None: the engine's own choice. `options`: of the drafter, or of
    the peer. `loading`: how the model is loaded (dtype, device, context). `plan`: a checked plan in place of `model`,
    `drafter`, `verify`, `depth` and `options`; `options` are then those of a peer alone."""
    kind: Any = engines.get(name)
    check_installed(name, options or {})
    if plan is not None:
        return _open_plan(name, kind, model, plan, options or {}, loading)
    chosen = {} if verify is None else {"verify": verify}
    engine: Engine = kind(model, drafter, depth=depth, options=dict(options or {}), **chosen, **loading)
    return engine


def _open_plan(
    name: str, kind: Any, model: Any, plan: Plan, options: Mapping[str, str], loading: Mapping[str, Any]
) -> Engine:
    """Open an engine with what a plan lowers to. The native engine takes a target that is loaded already."""
    if name == "native":
        from slipstream.engines.cascade.plans import open_checked

        return open_checked(plan, model, **loading)
    from slipstream.plan.lower.peers import lower_peer

    settings = lower_peer(plan, name, kind.capabilities.drafters, kind.capabilities.rules)
    given = {key: str(value) for key, value in settings.options.items()} | dict(options)
    chosen = {} if settings.rule is None else {"verify": settings.rule}
    placed = {**settings.loading, **loading}
    peer: Engine = kind(settings.model, settings.drafter, depth=settings.depth, options=given, **chosen, **placed)
    return peer
