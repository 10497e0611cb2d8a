"""slipstream: speculative sampling of language models, exact.

    import slipstream as ss
    with ss.Engine("smollm2-135m", drafter="ngram") as engine:
        for chunk in engine.stream("Once upon a time"):
            print(chunk.text, end="")

Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Audio": "slipstream.models.speech.audio:Audio",
    "Engine": "slipstream.engines.native.engine:NativeEngine",
    "Limits": "slipstream.engines.native.scheduler:Limits",
    "Sampling": "slipstream.core.sampling:Sampling",
    "Speculation": "slipstream.engines.options:Speculation",
    "GenerationOptions": "slipstream.engines.options:GenerationOptions",
    "Chunk": "slipstream.engines.base:Chunk",
    "Completion": "slipstream.engines.base:Completion",
    "Plan": "slipstream.plan.ir.nodes:Plan",
    "build_plan": "slipstream.plan.ir.build:build_plan",
    "open_plan": "slipstream.engines.cascade.plans:open_plan",
    "load_plan": "slipstream.plan.ir.library:load_plan",
    "transcribe": "slipstream.engines.speech.transcribe:transcribe",
    "hf": "slipstream.hf:",
}

__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"slipstream has no {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _PUBLIC[name].partition(":")
    imported = import_module(module)
    return getattr(imported, attribute) if attribute else imported


def __dir__() -> list[str]:
    return __all__
