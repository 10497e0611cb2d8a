"""A GGUF file's header, read once. While a file is converted it is asked for four times, and takes seconds each time
where the vocabulary is long; so do the names of the weights, asked for at every module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


@contextmanager
def reading_once() -> Iterator[None]:
    """Whoever makes a reader of a file in here, transformers among them, is given the one there is."""
    import gguf

    class CachedGgufReader(gguf.GGUFReader):  # type: ignore[misc]
        @property
        def data(self) -> Any:
            return self._bytes

        @data.setter
        def data(self, mapped: Any) -> None:
            self._bytes = mapped.view(np.ndarray)  # of which a slice, and a header is many, takes a third of the time

    made, own = cache(CachedGgufReader), (gguf.GGUFReader, gguf.get_tensor_name_map)
    gguf.GGUFReader = lambda path, mode="c": made(os.fspath(path), "c")  # what is written to stays in memory
    gguf.get_tensor_name_map = cache(own[1])
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = own
