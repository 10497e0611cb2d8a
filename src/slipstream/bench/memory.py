"""The highest memory use while something runs: of the accelerator where there is one, else of this process.

Linux keeps a high-water mark per process and lets a process reset its own. Elsewhere only the mark since the start can
be had, which says nothing about one cell among many, so nothing is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Watermark:
    """`with Watermark() as mark: …`, then `mark.peak` in bytes, None where it cannot be told."""

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


def resident(field: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
