"""Stages in front of a draft model: do they pay against plain decoding and against the draft model alone?

    python benchmarks/stages.py --model TARGET --draft DRAFT [--device auto] [--tokens 128] [--out FILE.json]

Every way has an engine of its own over one loaded target, and all take turns on the same prompts: plain decoding,
n-gram, the draft model alone, n-gram in front of the draft model (`staged`), each at fixed depths and by the policy.
The table has tau, tokens per second, and the ratio to plain decoding with its 95 % interval. Greedy, batch 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.bench.measure.provenance import commit, provenance
from slipstream.bench.statistics import estimate, ratio
from slipstream.bench.workloads import load_workloads
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine

WARM = 1  # runs of each way and prompt before any is timed


def ways(draft: str, depths: list[int]) -> dict[str, tuple[str, dict[str, str] | None, Speculation]]:
    """Drafter, its options and the speculation of each way."""
    kinds: dict[str, tuple[str, dict[str, str] | None]] = {
        "ngram": ("ngram", None),
        "draft": (draft, None),
        "staged": ("staged", {"stages": f"ngram,{draft}"}),
    }
    chosen: dict[str, tuple[str, dict[str, str] | None, Speculation]] = {"plain": ("none", None, Speculation(off=True))}
    for name, (drafter, options) in kinds.items():
        chosen[f"{name}, policy"] = drafter, options, Speculation()
        chosen |= {f"{name}, depth {depth}": (drafter, options, Speculation(depth=depth)) for depth in depths}
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--workload", default="code:2,chat:2,rewriting:2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    first = NativeEngine(given.model, "none", device=given.device, dtype=given.dtype)
    prompts = [item.turns[0] for workload in load_workloads(given.workload) for item in workload.items]
    engines: dict[str, NativeEngine] = {}
    runs: dict[str, tuple[NativeEngine, GenerationOptions]] = {}
    for name, (drafter, options, speculation) in ways(given.draft, given.depths).items():
        kind = name.split(",")[0]
        engines[kind] = engines.get(kind) or NativeEngine(first.target, drafter, options=options)
        runs[name] = engines[kind], GenerationOptions(given.tokens, ignore_eos=True, speculation=speculation)
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    counts: dict[str, list[int]] = {name: [0, 0] for name in runs}
    for repeat in range(-WARM, given.repeats):
        for prompt in prompts:
            for name, (engine, options) in runs.items():
                began = time.perf_counter()
                done = engine.submit(prompt, Sampling(0.0), options)[0].result()
                if repeat >= 0:
                    speeds[name].append(given.tokens / (time.perf_counter() - began))
                    counts[name] = [counts[name][0] + done.stats.emitted, counts[name][1] + done.stats.cycles]
    results: dict[str, Any] = {}
    for name in runs:
        value, low, high = ratio(speeds[name], speeds["plain"]).data()
        tau, speed = counts[name][0] / counts[name][1], estimate(speeds[name]).value
        results[name] = {"tau": round(tau, 2), "tokens_per_second": round(speed, 1), "ratio": [value, low, high]}
        interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
        print(f"{name:16} tau {tau:4.2f}, {speed:7.1f} t/s, {value:.2f} of plain{interval}", flush=True)
    if given.out:
        origin = {"commit": commit(), **provenance(first.target.files, sys.argv)}
        given.out.write_text(json.dumps({"origin": origin, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
