"""What of the machine is ours, and a word about it for those who ask (`SLIPSTREAM_DEBUG=1`)."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch

CONTROL = Path("/sys/fs/cgroup")


def say(sentence: str) -> None:
    if os.environ.get("SLIPSTREAM_DEBUG") == "1":
        print(sentence, file=sys.stderr)


def cores(control: Path = CONTROL) -> int:
    """Cores this process may really use: those it is bound to, and no more than a container's share of time."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _quota(control)
    return max(1, min(bound, math.ceil(share))) if share else bound


def _quota(control: Path) -> float | None:
    """Of control groups, second version or first; None where there is no limit."""
    try:
        quota, period = (control / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((control / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    return int(quota) / int(period) if quota.strip().isdigit() else None


def use_cores() -> None:
    """No more threads than cores: a team whose members wait for one another waits for the one without a core."""
    threads = min(torch.get_num_threads(), cores())
    if threads < torch.get_num_threads():
        torch.set_num_threads(threads)
    say(f"threads: {threads}")
