"""Speeds of llama.cpp's own benchmarks: llama-bench and llama-batched-bench of the native build."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from slipstream.engines.llamacpp.native_build import LlamaBuild


def decoding(build: LlamaBuild, file: Path, tokens: int, threads: int) -> float:
    """Tokens per second of one text without a prompt."""
    return _bench(build, file, threads, "-p", "0", "-n", str(tokens))


def reading(build: LlamaBuild, file: Path, tokens: int, threads: int) -> float:
    """Tokens per second of a prompt."""
    return _bench(build, file, threads, "-p", str(tokens), "-n", "0")


def batched(build: LlamaBuild, file: Path, rows: int, prompt: int, tokens: int, threads: int) -> float:
    """Tokens per second of all rows together, after their prompts."""
    context = str(rows * (prompt + tokens))
    command = [build.program("llama-batched-bench"), "-m", file, "-c", context, "-b", "2048", "-ub", "512"]
    command += ["-npp", str(prompt), "-ntg", str(tokens), "-npl", str(rows), "-t", str(threads), "-tb", str(threads)]
    lines = _run([*map(str, command), "--output-format", "jsonl"]).splitlines()
    return float(next(json.loads(line)["speed_tg"] for line in lines if line.startswith("{")))


def _bench(build: LlamaBuild, file: Path, threads: int, *work: str) -> float:
    command = [build.program("llama-bench"), "-m", file, *work, "-t", str(threads), "-r", "1", "-o", "json"]
    (entry,) = json.loads(_run(list(map(str, command))))
    return float(entry["avg_ts"])


def _run(command: list[str]) -> Any:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
