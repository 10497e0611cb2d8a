"""Reads a GGUF file's header once per conversion.

A conversion asks for the header four times, which takes seconds each time where the vocabulary is long. It asks for
the map of tensor names at every module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


@contextmanager
def reading_once() -> Iterator[None]:
    """Make all readers of a GGUF file in this block, also those of transformers, share one reader."""
    import gguf

    class CachedGgufReader(gguf.GGUFReader):  # type: ignore[misc]
        @property
        def data(self) -> Any:
            return self._bytes

        @data.setter
        def data(self, mapped: Any) -> None:
            self._bytes = mapped.view(np.ndarray)  # slicing an ndarray takes a third of the time of slicing a memmap

    cached_reader, originals = cache(CachedGgufReader), (gguf.GGUFReader, gguf.get_tensor_name_map)
    # copy on write: the file is not changed
    gguf.GGUFReader = lambda path, mode="c": cached_reader(os.fspath(path), "c")
    gguf.get_tensor_name_map = cache(originals[1])
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = originals
