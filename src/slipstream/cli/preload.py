"""Loads torch's library on a second core while this one imports Python modules."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

MODEL_COMMANDS = ("generate", "chat", "serve", "transcribe")  # these always need torch


def preload_torch(command: str) -> threading.Thread | None:
    """Start to load libtorch_cpu.so if a command needs it. `import torch` later finds it loaded.

    Loading it takes a fifth of the time of `import torch`, and Python holds its lock meanwhile. A foreign call of
    dlopen does not hold it."""
    if command not in MODEL_COMMANDS or sys.platform != "linux" or "torch" in sys.modules:
        return None
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    library = Path(spec.submodule_search_locations[0]) / "lib" / "libtorch_cpu.so"
    thread = threading.Thread(target=_load, args=(library,), name="slipstream-preload", daemon=True)
    thread.start()
    return thread


def _load(library: Path) -> None:
    """Map a library. If that fails, `import torch` reports it."""
    load = ctypes.CDLL(None).dlopen
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    load(bytes(library), os.RTLD_NOW)
