"""Tau of drafters on files of prompts.

    python benchmarks/tau.py FILE … [--drafters eagle:5 dflash:8 medusa:tree …] [--prompts 80] [--tokens 96]
        [--temperature 0] [--model smollm2-135m] [--device auto] [--rows 16] [--out FILE]

A FILE is JSONL with a text under `prompt` in each line; its first prompts count. NAME:5 drafts chains of five tokens,
NAME:tree trees of 24 nodes; NAME may be a folder. Tau of a file is all tokens divided by all cycles; the mean is that
of the files. Its interval (95 %) is by the jackknife over prompts.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import slipstream as ss
from slipstream.bench.measure.provenance import commit, provenance
from slipstream.core.student import student_quantile
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.target import Target

NODES = 24
DRAFTERS = "eagle:5 eagle:7 dflash:5 dflash:8 draft_model:5 early_exit:5 mlp:5 prophet:5 medusa:5 medusa:tree"

Counts = list[tuple[int, int]]  # tokens and cycles of each prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--drafters", nargs="+", default=DRAFTERS.split())
    parser.add_argument("--prompts", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    prompts = {path.stem: read(path, given.prompts) for path in given.files}
    target = build_target(given.model, device=given.device)
    lines = []
    for drafter in given.drafters:
        lines.append(measure(target, drafter, prompts, given))
        print(drafter, lines[-1]["mean"], flush=True)
        if given.out:
            write(given.out, target, lines, given)
    show(lines, list(prompts))


def read(path: Path, count: int) -> list[str]:
    """The first prompts of a file."""
    lines = [line for line in path.read_text().split("\n") if line.strip()]
    return [json.loads(line)["prompt"] for line in lines[:count]]


def measure(target: Target, drafter: str, files: dict[str, list[str]], given: argparse.Namespace) -> dict[str, Any]:
    """Tau of one drafter on every file, and the mean."""
    name, _, shape = drafter.rpartition(":")
    chosen = ss.Speculation(shape=NODES) if shape == "tree" else ss.Speculation(depth=int(shape))
    options, counts = GenerationOptions(given.tokens, speculation=chosen), []
    with NativeEngine(target, name, limits=ss.Limits(rows=given.rows, retained=0)) as engine:
        for prompts in files.values():
            sampling = [ss.Sampling(given.temperature, seed=i) for i in range(len(prompts))]
            done = [handle.result() for handle in engine.submit_all(prompts, sampling, options)]
            counts.append([(len(one.token_ids), one.stats.cycles) for one in done])
    taus = {file: round(tau(some), 4) for file, some in zip(files, counts, strict=True)}
    return {"drafter": drafter, "files": taus, "mean": [round(x, 4) for x in mean_with_interval(counts)]}


def tau(counts: Counts) -> float:
    return sum(tokens for tokens, _ in counts) / sum(cycles for _, cycles in counts)


def mean_with_interval(files: Sequence[Counts]) -> tuple[float, float, float]:
    """The mean tau of the files, and its interval: each file is measured again without each of its prompts."""
    mean, variance, degrees = sum(tau(counts) for counts in files) / len(files), 0.0, 0
    for counts in files:
        without = [tau(counts[:i] + counts[i + 1 :]) for i in range(len(counts))] if len(counts) > 1 else [tau(counts)]
        centre = sum(without) / len(without)
        variance += (len(without) - 1) / len(without) * sum((x - centre) ** 2 for x in without) / len(files) ** 2
        degrees += len(without) - 1
    half = student_quantile(max(1, degrees)) * math.sqrt(variance)
    return mean, mean - half, mean + half


def write(path: Path, target: Target, lines: list[dict[str, Any]], given: argparse.Namespace) -> None:
    settings = {name: getattr(given, name) for name in ("prompts", "tokens", "temperature", "model", "rows")}
    about = {"settings": settings, "commit": commit(), **provenance(target.files, sys.argv)}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(about | {"lines": lines}, indent=1) + "\n")
    partial.replace(path)


def show(lines: list[dict[str, Any]], files: list[str]) -> None:
    table = Table("drafter", *files, "mean", "95 % interval")
    for line in lines:
        mean, low, high = line["mean"]
        table.add_row(
            line["drafter"], *(f"{x:.2f}" for x in line["files"].values()), f"{mean:.3f}", f"{low:.2f} to {high:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
