"""Imports torch without its Python rules for tensors without data, which a quarter of its import takes.

`torch._meta_registrations` and what it imports (`torch._decomp`, `torch._refs`, `torch._prims`) serve tensors on the
device `meta`, torch.compile, torch.export and `torch.Generator`. Decoding from a compiled package uses none of them. So
`generate` leaves the module out, and imports it before any module that might need it: any further module of torch, and
any package but those below. transformers is such a package, so a model without a compiled package has all of torch.
"""

from __future__ import annotations

import atexit
import gc
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any

LEFT_OUT = "torch._meta_registrations"
# Packages that decoding from a package imports.
KNOWN = frozenset(
    {*sys.stdlib_module_names, "slipstream", "numpy", "tokenizers", "safetensors", "jinja2", "markupsafe", "rich"}
    | {"jaxtyping", "typeguard", "typer", "annotated_doc", "shellingham"}
)
# The options of `generate` with which only the native engine and the default drafter run.
REQUEST = frozenset(
    {"prompt", "file", "system", "raw", "model", "max_tokens", "min_tokens", "stop", "temperature", "top_k", "top_p"}
    | {"min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "as_json"}
)


def import_torch(context: Any) -> None:
    """Import torch for the command of a typer context, with no more than it needs."""
    given = {name for name in context.params if _is_given(context, name)}
    if context.info_name == "generate" and given <= REQUEST and "torch" not in sys.modules:
        _import_light()


def _is_given(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name != "DEFAULT"


def _import_light() -> None:
    finder = LaterFinder()
    sys.meta_path.insert(0, finder)
    torch: Any = None
    try:
        import torch
    finally:
        finder.leave_out = False
        sys.modules.pop(LEFT_OUT, None)
        if torch is None or not hasattr(torch, "_meta_registrations"):
            sys.meta_path.remove(finder)
    if finder in sys.meta_path:
        del torch._meta_registrations
        atexit.register(gc.freeze)  # the interpreter would search all objects once more at its end, which takes 0.4 s


class LaterFinder(MetaPathFinder):
    """Gives an empty module in place of the one to leave out, and later imports that one before others that need it."""

    def __init__(self) -> None:
        self.leave_out = True
        self._importing: set[int] = set()  # threads

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if self.leave_out:
            return ModuleSpec(name, EmptyLoader()) if name == LEFT_OUT else None
        if name.partition(".")[0] not in KNOWN and name != LEFT_OUT and get_ident() not in self._importing:
            self._import_rest()
            spec = sys.modules[name].__spec__ if name in sys.modules else None
            if spec is not None:  # it was among the rest; Python would load it again, which would empty its tables
                spec.loader = LoadedLoader(spec.loader)
                return spec
        return None

    def _import_rest(self) -> None:
        """Import what was left out. Python's import locks make other threads wait for it."""
        self._importing.add(get_ident())
        try:
            import_module(LEFT_OUT)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            atexit.unregister(gc.freeze)
        finally:
            self._importing.discard(get_ident())


class EmptyLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class LoadedLoader(Loader):
    """Gives a module that was loaded while it was being looked for."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self._own
