"""Peak memory use: of the GPU if there is one, otherwise of this process.

Linux keeps a high-water mark per process, and a process can reset its own. Other systems have only the mark since the
start of the process, which is useless for one cell among many, so the peak is None there.
"""

from __future__ import annotations

import gc
import re
import time
from pathlib import Path
from typing import Self

import torch

from slipstream.kernels.machine import return_freed_memory

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LITTLE = 1 << 24  # bytes; a smaller decrease of memory counts as none
PATIENCE = 5  # attempts without a decrease before `release_memory` stops
# messages of torch, transformers, llama.cpp, vLLM and the system
OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|(can.?t|cannot|unable to|failed to|could not) allocate"
    r"|(not enough|insufficient)\b.*\bmemory",
    re.IGNORECASE,
)


class PeakMemory:
    """`with PeakMemory() as mark: …`, then `mark.peak` in bytes; None if it cannot be measured."""

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
    """Return unused memory to the system, for other programs.

    That is memory of unreachable objects in reference cycles, and freed memory that allocators keep, which can be a
    whole model. The C library's allocator returns it on request. torch's allocator on ARM returns memory freed more
    than 0.1 s
    ago, a part of it at each further free, so a tensor is freed until memory no longer decreases."""
    gc.collect()
    return_freed_memory()
    pieces = [
        torch.empty(1 << 20, dtype=torch.uint8) for _ in range(2000)
    ]  # makes the allocator visit memory of threads that ended
    del pieces
    least, attempts = resident("VmRSS") or 0, 0
    while attempts < PATIENCE:
        time.sleep(0.15)
        torch.empty(LITTLE, dtype=torch.uint8)
        now = resident("VmRSS") or 0
        attempts = 0 if now < least - LITTLE else attempts + 1
        least = min(least, now)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory is exhausted."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def resident(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None on other systems."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
