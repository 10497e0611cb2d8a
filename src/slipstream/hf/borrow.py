"""Wraps the user's model for one call.

The call replaces the model's attention implementation and restores it at the end, also after an exception. Probing a
model costs a few passes, so the result is kept as long as the model lives and its modules stay the same objects. Two
calls that share a model wait for each other, because a model has one attention implementation.
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
class ModelRecord:
    """The result of probing a model, and its lock. It holds no reference to the model itself."""

    lock: Any = field(default_factory=threading.RLock)
    modules: tuple[int, ...] = ()
    anatomy: ModelAnatomy | None = None


_RECORDS: WeakKeyDictionary[Any, ModelRecord] = WeakKeyDictionary()
_GUARD = threading.Lock()


@contextmanager
def borrowed(models: Sequence[Any], prefill_chunk: int) -> Iterator[list[TorchModel]]:
    """Wrap models inside a `with` block. Locks are taken in one order, so that two calls cannot deadlock."""
    with _GUARD:
        records = {id(model): _RECORDS.setdefault(model, ModelRecord()) for model in models}
    with ExitStack() as stack:
        for key in sorted(records):
            stack.enter_context(records[key].lock)
        for model in models:
            stack.callback(_restore, [(config, config._attn_implementation) for config in _configs(model)])
            stack.callback(_set_training, [module for module in model.modules() if module.training])
        yield [_wrapped(model, records[id(model)], prefill_chunk) for model in models]


def _wrapped(model: Any, record: ModelRecord, prefill_chunk: int) -> TorchModel:
    modules = tuple(map(id, model.modules()))
    if record.anatomy is None or record.modules != modules:
        wrapper = TorchModel(model, prefill_chunk=prefill_chunk, kernels=False)
        record.anatomy, record.modules = wrapper.anatomy, modules
        return wrapper
    plug_in(model)
    return TorchModel(model, prefill_chunk=prefill_chunk, anatomy=record.anatomy, kernels=False)


def _configs(model: Any) -> list[Any]:
    """The configurations of a model's modules, outermost first: setting one sets the nested ones."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation")]


def _set_training(modules: Sequence[Any]) -> None:
    """Restore the training mode of modules inside a model that is in evaluation mode."""
    for module in modules:
        module.training = True


def _restore(own: Sequence[tuple[Any, Any]]) -> None:
    for config, name in own:
        config._attn_implementation = name
