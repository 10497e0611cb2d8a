"""Loads torch's library on a second core while this one imports Python modules."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.cli.light_torch import import_torch
from slipstream.kernels import collector

MODEL_COMMANDS = ("generate", "chat", "serve", "transcribe")  # these always need torch
# Python's own libraries that the command line imports. While a library is loaded, glibc loads no other one. So these
# come first, in milliseconds, and what imports them runs while torch's library is loaded.
EXTENSIONS = (
    *("zlib", "_bz2", "_lzma", "_opcode", "fcntl", "_posixsubprocess", "select", "math", "_datetime", "_uuid"),
    *("_heapq", "_json", "_pickle", "_bisect", "_random", "_sha512", "_csv", "binascii", "_socket", "array"),
    *("_decimal", "_contextvars", "_hashlib", "_blake2"),
)


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
    for name in EXTENSIONS:
        with suppress(ImportError):  # built into Python, or not there
            import_module(name)
    # not a daemon: a process that ends while a library is loaded crashes
    thread = threading.Thread(target=_load, args=(library,), name="slipstream-preload")
    thread.start()
    return thread


def _load(library: Path) -> None:
    """Map a library. If that fails, `import torch` reports it."""
    load = ctypes.CDLL(None).dlopen
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    load(bytes(library), os.RTLD_NOW)


@contextmanager
def importing(context: Any = None) -> Iterator[None]:
    """Import modules without garbage collection, neither now nor later: they stay until the process ends.

    `context`: the command's context, by which torch is imported first, with no more than the command needs."""
    with collector.paused():
        if context is not None:
            import_torch(context)
        yield
        gc.freeze()
    atexit.register(gc.unfreeze)  # some libraries complain of what is not collected at the end
