"""The highest memory use while something runs: of the accelerator where there is one, else of this process.

Linux keeps a high-water mark per process and lets a process reset its own. Elsewhere only the mark since the start can
be had, which says nothing about one cell among many, so nothing is said.
"""

from __future__ import annotations

import ctypes
import gc
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LITTLE = 1 << 24  # bytes that are not worth waiting for
PATIENCE = 5  # times that memory is freed without anything given back
# as torch, transformers, llama.cpp, vLLM and the system say it
SHORT = re.compile(
    r"out of memory|bad_alloc|(can.?t|cannot|unable to|failed to|could not) allocate"
    r"|(not enough|insufficient)\b.*\bmemory",
    re.IGNORECASE,
)


class PeakMemory:
    """`with PeakMemory() as mark: …`, then `mark.peak` in bytes, None where it cannot be told."""

    def __init__(self) -> None:
        self.peak: int | None = None
        self._can = True

    def __enter__(self) -> Self:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            return self
        try:
            RESET.write_text("5")
        except OSError:
            self._can = False
        return self

    def __exit__(self, *_: object) -> None:
        if torch.cuda.is_available():
            self.peak = int(torch.cuda.max_memory_allocated())
        elif self._can:
            self.peak = resident("VmHWM")


def release_memory() -> None:
    """Hand to the system what nobody uses any more, for programs beside this one: objects in circles of references, and
    what allocators keep of freed memory, which can be a whole model. The C library takes a word for it. The allocator
    that torch has on ARM gives back some of what was freed a tenth of a second ago, each time more is freed."""
    gc.collect()
    with suppress(OSError, AttributeError):  # a C library that has no such call
        ctypes.CDLL(None).malloc_trim(0)
    pieces = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(2000)]  # finds what ended threads have left
    del pieces
    least, in_vain = resident("VmRSS") or 0, 0
    while in_vain < PATIENCE:
        time.sleep(0.15)
        torch.empty(LITTLE, dtype=torch.uint8)
        now = resident("VmRSS") or 0
        in_vain = 0 if now < least - LITTLE else in_vain + 1
        least = min(least, now)


def is_out_of_memory(error: Exception) -> bool:
    """Whether something failed for lack of memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or SHORT.search(str(error)) is not None


def resident(field: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
