"""The user's model, lent to us for one call.

Our attention stands in it while the call runs, and its own is put back however the call ends. What a probe found out
about a model is kept while the model lives and its modules stay the same ones: a probe costs a few passes. Two calls
that share a model wait for each other, since there is one attention to exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from slipstream.models.run.attention import plug_in
from slipstream.models.run.support_check import ModelAnatomy
from slipstream.models.run.torch_model import TorchModel


@dataclass
class Known:
    """What is remembered of a model; nothing in it holds the model itself."""

    lock: Any = field(default_factory=threading.RLock)
    modules: tuple[int, ...] = ()
    anatomy: ModelAnatomy | None = None


_KNOWN: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()
_GUARD = threading.Lock()


@contextmanager
def lent(models: Sequence[Any], prefill_chunk: int) -> Iterator[list[TorchModel]]:
    """Wrap models for the length of a block. Locks are taken in one order, so no two calls block each other."""
    with _GUARD:
        known = {id(model): _KNOWN.setdefault(model, Known()) for model in models}
    with ExitStack() as stack:
        for key in sorted(known):
            stack.enter_context(known[key].lock)
        for model in models:
            stack.callback(_restore, [(config, config._attn_implementation) for config in _configs(model)])
            stack.callback(_train, [module for module in model.modules() if module.training])
        yield [_wrapped(model, known[id(model)], prefill_chunk) for model in models]


def _wrapped(model: Any, known: Known, prefill_chunk: int) -> TorchModel:
    modules = tuple(map(id, model.modules()))
    if known.anatomy is None or known.modules != modules:
        wrapper = TorchModel(model, prefill_chunk=prefill_chunk, kernels=False)
        known.anatomy, known.modules = wrapper.anatomy, modules
        return wrapper
    plug_in(model)
    return TorchModel(model, prefill_chunk=prefill_chunk, anatomy=known.anatomy, kernels=False)


def _configs(model: Any) -> list[Any]:
    """The configurations a model's parts look at, outermost first: setting one sets those within it."""
    found = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return [config for config in found.values() if hasattr(config, "_attn_implementation")]


def _train(modules: Sequence[Any]) -> None:
    """Some parts of a model in evaluation may be in training, as those it was given later."""
    for module in modules:
        module.training = True


def _restore(own: Sequence[tuple[Any, Any]]) -> None:
    for config, name in own:
        config._attn_implementation = name
