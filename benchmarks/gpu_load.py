"""A GPU under load: tokens per second by batch, prompts included, beside vLLM in a process of its own.

    python benchmarks/gpu_load.py --prompts prompts.jsonl --out results.json [--vllm PYTHONPATH]

All ways take turns: plain decoding, the policy and fixed depths, each in an engine of its own (`plain`, `policy`,
`depth 3`), and the policy in one engine whose requests alternate between all of them (`policy, mixed`). Every request
emits the same number of tokens. Prompts are token ids on both sides, without prefix reuse. Each cell has two runs
before any is timed. `first` is the time until every row has its first token, in runs of their own. With `--vllm` a
process with that PYTHONPATH runs vLLM in process (`gpu_load_vllm.py`), on the same prompts, in turn with the others.

The ways `plain, reuse` and `policy, reuse` have prefix reuse. With one of them, all prompts of ours begin with a token
that no other has, so that there is nothing to reuse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from gpu_common import pace, timed_batch

from slipstream.bench.measure.provenance import commit
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.sources.catalog import full_folder

WAYS = {"plain": Speculation(off=True), "policy": Speculation(), "depth 3": Speculation(depth=3)}
REUSE = "plain, reuse", "policy, reuse"
FIRST_TOKEN = 1000  # and those that follow it, for prompts that have nothing in common
WARM = 2  # runs of each cell before any is timed
Run = Callable[[int, bool], dict[str, float]]  # batch, whether the first tokens are timed


class Ours:
    """An engine and what one of its requests asks for."""

    def __init__(self, engine: NativeEngine, prompts: list[list[int]], speculation: Speculation, asked: Any) -> None:
        self._engine, self._prompts, self._asked = engine, prompts, asked
        self._first_tokens = count(FIRST_TOKEN) if set(asked.ways) & set(REUSE) else None
        self._options = GenerationOptions(max_tokens=asked.tokens, ignore_eos=True, speculation=speculation)

    def __call__(self, batch: int, first: bool) -> dict[str, float]:
        prompts = [self._prompts[i % len(self._prompts)] for i in range(batch)]
        if self._first_tokens is not None:
            prompts = [[next(self._first_tokens), *prompt[1:]] for prompt in prompts]
        heat = self._asked.temperature
        repeatable = not heat or self._asked.verify == "coupled"  # under others, a seed would fix the policy's depth
        samplings = [Sampling(temperature=heat, seed=i if repeatable else None) for i in range(batch)]
        timed = timed_batch(self._engine, prompts, samplings, self._options, first)
        return timed | pace([timed])


class Theirs:
    """vLLM in a process of its own."""

    def __init__(self, path: str, folder: Path, prompts: list[list[int]], asked: Any) -> None:
        script = Path(__file__).with_name("gpu_load_vllm.py")
        environment = os.environ | {
            "PYTHONPATH": path,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "HF_HUB_OFFLINE": "1",
            "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(asked.vllm_log, "w"),  # noqa: SIM115 - it lives as long as the process
            text=True,
            env=environment,
        )
        self._say({"model": str(folder), "prompts": prompts, "rows": max(asked.batches)})

    def ready(self) -> dict[str, Any]:
        return self._hear()

    def __call__(self, batch: int, first: bool) -> dict[str, float]:
        self._say({"batch": batch, "tokens": 1 if first else ASKED.tokens, "temperature": ASKED.temperature})
        answer = self._hear()
        return {"first": answer["seconds"]} if first else {"speed": answer["count"] / answer["seconds"], "tau": 1.0}

    def _say(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"vLLM ended; see {ASKED.vllm_log}")


def cell(ways: dict[str, Run], batch: int, repeats: int) -> dict[str, Any]:
    """All ways in turn at one batch."""
    for run in ways.values():
        for _ in range(WARM):
            run(batch, False)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    firsts: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            runs[name].append(run(batch, False))
    for _ in range(3):
        for name, run in ways.items():
            firsts[name].append(run(batch, True)["first"])
    return {
        name: {
            "tokens_per_second": round(statistics.median(run["speed"] for run in each), 1),
            "repeats": [round(run["speed"]) for run in each],
            "tau": round(each[-1]["tau"], 2),
            "first_ms": round(1000 * min(firsts[name]), 1),
        }
        for name, each in runs.items()
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--head", default="eagle")
    parser.add_argument("--prompts", type=Path, required=True, help='lines of {"prompt": "…"}')
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64, 256])
    parser.add_argument("--ways", nargs="+", default=[*WAYS, "policy, mixed"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--verify", default="block")
    parser.add_argument("--vllm", metavar="PYTHONPATH", help="where vLLM and its packages are")
    parser.add_argument("--vllm-log", default="vllm.log")
    parser.add_argument("--seconds", type=float, default=500, help="a cell that has not begun by then is left out")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    start, asked = time.perf_counter(), ASKED
    limits = Limits(rows=max(asked.batches), tokens=1 << 19, retained=0)

    def opened(limits: Limits = limits) -> NativeEngine:
        return NativeEngine(build_target(asked.model), asked.head, asked.verify, limits=limits)

    mixed = opened()
    lines = [line for line in asked.prompts.read_text().split("\n") if line]
    prompts = mixed.text.encode_all([json.loads(line)["prompt"] for line in lines])
    peer = Theirs(asked.vllm, full_folder(mixed.target.files.path), prompts, asked) if asked.vllm else None
    ways: dict[str, Run] = {}
    for name in asked.ways:
        if name in WAYS:
            ways[name] = Ours(opened(), prompts, WAYS[name], asked)
        if name in REUSE:
            engine = opened(replace(limits, retained=Limits().retained))
            ways[name] = Ours(engine, prompts, WAYS[name.removesuffix(", reuse")], asked)
    if "policy, mixed" in asked.ways:
        for name in ("plain", "depth 3"):
            ways[f"{name}, mixed"] = Ours(mixed, prompts, WAYS[name], asked)
        ways["policy, mixed"] = Ours(mixed, prompts, WAYS["policy"], asked)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": mixed.label,
        "sha256": mixed.target.files.sha256,
        "commit": commit(),
        "command": " ".join(sys.argv),
        "mean_prompt_tokens": statistics.mean(map(len, prompts)),
        "cells": {},
    }
    if peer is not None:
        results |= peer.ready()
        ways["vllm, plain"] = peer
    for batch in asked.batches:
        if time.perf_counter() - start > asked.seconds:
            print(f"batch {batch}: left out, {asked.seconds:.0f} seconds were over", flush=True)
            continue
        results["cells"][batch] = cell(ways, batch, asked.repeats)
        for name, figures in results["cells"][batch].items():
            print(f"batch {batch:>3}  {name:<16} {json.dumps(figures)}", flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(results, indent=1) + "\n")


ASKED = arguments()

if __name__ == "__main__":
    main()
