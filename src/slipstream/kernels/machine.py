"""The resources of the machine that this process may use, and messages about them on stderr."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch

CONTROL = Path("/sys/fs/cgroup")


def say(sentence: str) -> None:
    """Write a line to stderr if SLIPSTREAM_DEBUG=1."""
    if os.environ.get("SLIPSTREAM_DEBUG") == "1":
        print(sentence, file=sys.stderr)


@functools.cache
def warn(sentence: str) -> None:
    """Write a line to stderr, each sentence once."""
    print(f"slipstream: {sentence}", file=sys.stderr)


def return_freed_memory() -> None:
    """Return memory that was freed, and that the C library's allocator keeps, to the system."""
    with suppress(OSError, AttributeError):  # C libraries without this function
        ctypes.CDLL(None).malloc_trim(0)


def cores(control: Path = CONTROL) -> int:
    """Cores this process may use: limited by its CPU affinity and by the CPU quota of its container."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _quota(control)
    return max(1, min(bound, math.ceil(share))) if share else bound


def _quota(control: Path) -> float | None:
    """The CPU quota in cores from cgroups v2 or v1; None if there is no limit."""
    try:
        quota, period = (control / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((control / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    return int(quota) / int(period) if quota.strip().isdigit() else None


def memory(control: Path = CONTROL) -> int:
    """Bytes of memory this process may use: the machine's memory or the container's limit, whichever is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max": there is no limit
            limits.append(int((control / name).read_text()))
    return min(limits)


def use_cores() -> None:
    """Limit torch's threads to the usable cores. Threads wait for one another at barriers, so extra ones slow all."""
    threads = min(torch.get_num_threads(), cores())
    if threads < torch.get_num_threads():
        torch.set_num_threads(threads)
    say(f"threads: {threads}")


def limit_threads(count: int, default: int) -> None:
    """Set torch's threads for the calling thread alone. `default`: those of threads that begin later.

    `torch.set_num_threads` sets both. So a thread that ends at once sets the default back."""
    torch.set_num_threads(count)
    restoring = threading.Thread(target=torch.set_num_threads, args=(default,))
    restoring.start()
    restoring.join()


def processor() -> str:
    """The processor's name in /proc/cpuinfo, or its ARM part number, or Python's name for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(reversed([[word.strip() for word in line.split(":", 1)] for line in lines if ":" in line]))
    if "model name" in fields:
        return str(fields["model name"])
    parts = [f"{name} {fields[name]}" for name in ("CPU implementer", "CPU part") if name in fields]
    arm_names = {
        ("0x41", "0xd0c"): "ARM Neoverse-N1",
        ("0x41", "0xd40"): "ARM Neoverse-V1",
        ("0x41", "0xd4f"): "ARM Neoverse-V2",
    }
    return arm_names.get((fields.get("CPU implementer", ""), fields.get("CPU part", "")), ", ".join(parts))
