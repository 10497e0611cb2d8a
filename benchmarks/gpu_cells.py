"""Eagle by the policy against plain decoding: batch x rule x workload, prompts included. Resumable.

    python benchmarks/gpu_cells.py --out cells.json [--batches 1 8 32 64 256] [--rules greedy block coupled]
        [--workloads mix code chat maths summary rewriting] [--seconds S] [--tokens 128] [--repeats 5] [--device auto]

Greedy at T = 0, block and coupled at T = 0.8. `mix` has short and long prompts of all workloads. Plain decoding, the
policy and, in twelve cells (`gpu_cells_bars.STATED`), fixed depths have one engine each for the whole call, warmed up
as that of a server (`warm_up`). Each has its own target, so that plain decoding keeps no hidden states for the head.
They take turns in every cell, after two runs of each that do not count. Requests emit the same number of tokens and
reuse no prefix. Block runs without a seed, because the policy does not choose the depth of a seeded request under this
rule.

FILE is written after every cell. A call with the same file measures the cells that it lacks; none begins after S
seconds. The exit code is 1 where a bar is missed (`gpu_cells_bars.misses`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Self

from gpu_cells_bars import BATCHES, DEPTHS, RULES, WORKLOADS, Cell, cells, misses, shown_ratio, table
from gpu_common import pace, timed_batch

from slipstream.bench.journal import write_whole
from slipstream.bench.measure.provenance import commit, hardware, versions
from slipstream.bench.workloads import load_workloads
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.machine import processor

WARM = 2  # runs of each way before any counts
REQUESTS = 4  # of a run at least; a smaller batch runs several times, for the mean of several prompts


def texts(workload: str) -> list[str]:
    """The prompts of a workload; in `mix` each first prompt, then all of its workload as one."""
    if workload != "mix":
        return [item.turns[0] for item in load_workloads(workload)[0].items]
    every = [texts(name) for name in WORKLOADS if name != "mix"]
    return [text for each in every for text in (each[0], "\n\n".join(each))]


class Ways:
    """The engines of a call, each opened when a cell first needs it, and the runs they make."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._limits = given, Limits(rows=max(given.batches), retained=0)
        self._engine, self._prompts = cache(self._open), cache(self._encode)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _open(self, kind: str) -> NativeEngine:
        target = build_target(self._given.model, device=self._given.device)
        drafter = "none" if kind == "plain" else self._given.drafter
        return self._opened.enter_context(NativeEngine(target, drafter, limits=self._limits, warm_up=True))

    def _encode(self, workload: str) -> list[list[int]]:
        return self._engine("plain").text.encode_all(texts(workload))

    def settings(self) -> dict[str, Any]:
        """What all cells of a file share."""
        engine = self._engine("plain")
        device = hardware()["accelerator"] if engine.target.model.device.type == "cuda" else processor()
        own = {name: getattr(self._given, name) for name in ("drafter", "tokens", "repeats")}
        return {"model": engine.target.label, "sha256": engine.target.files.sha256, **own, "device": device}

    def run(self, cell: Cell, way: str, repeat: int) -> dict[str, float]:
        depth = int(way.split()[1]) if way.startswith("depth") else None
        speculation = Speculation(off=way == "plain", depth=depth, verify=cell.rule)
        options = GenerationOptions(max_tokens=self._given.tokens, ignore_eos=True, speculation=speculation)
        prompts, count = self._prompts(cell.workload), max(cell.batch, REQUESTS)
        batch = [prompts[i % len(prompts)] for i in range(count)]
        samplings = [RULES[cell.rule].sampling(1000 * (repeat + WARM) + i) for i in range(count)]
        engine = self._engine("fixed" if depth else way)
        parts = [slice(start, start + cell.batch) for start in range(0, count, cell.batch)]
        return pace([timed_batch(engine, batch[part], samplings[part], options) for part in parts])

    def measure(self, cell: Cell) -> dict[str, Any]:
        names = ["plain", "policy", *(f"depth {depth}" for depth in DEPTHS if cell.stated)]
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for repeat in range(-WARM, self._given.repeats):
            for name in names:
                runs[name] += [self.run(cell, name, repeat)][: max(0, repeat + 1)]
        lengths = [len(prompt) for prompt in self._prompts(cell.workload)]
        return {
            "prompt_tokens": [min(lengths), round(sum(lengths) / len(lengths)), max(lengths)],
            "rows": self._limits.rows,
            "commit": commit(),
            "speeds": {name: [round(run["speed"], 1) for run in each] for name, each in runs.items()},
            "tau": {name: round(sum(run["tau"] for run in each) / len(each), 2) for name, each in runs.items()},
        }


def read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The results so far. Another machine, model or number of tokens needs another file."""
    if not path.exists():
        return {
            "settings": settings,
            "hardware": hardware(),
            "versions": versions(),
            "command": " ".join(sys.argv),
            "cells": {},
        }
    results: dict[str, Any] = json.loads(path.read_text())
    if results["settings"] != settings:
        raise SystemExit(f"{path} was measured with {results['settings']}; name another file")
    return results


def measure_missing(ways: Ways, wanted: Sequence[Cell], given: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    results = read(given.out, ways.settings())
    left = [cell for cell in wanted if cell.name not in results["cells"]]
    for n, cell in enumerate(left):
        start = time.perf_counter()
        if start - began > given.seconds:
            print(f"{len(left) - n} cells are left: {given.seconds:g} seconds are over", flush=True)
            break
        record = results["cells"][cell.name] = ways.measure(cell)
        write_whole(given.out, json.dumps(results).replace('}, "', '},\n"') + "\n")
        took, own = time.perf_counter() - start, " ".join(shown_ratio(record))
        print(f"{n + 1}/{len(left)}  {cell.name}: {own} of plain, {took:.1f} s", flush=True)
    return results


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(words)
    wanted = cells(given.batches, given.rules, given.workloads)
    with Ways(given) as ways:
        results = measure_missing(ways, wanted, given)
    done = {cell: results["cells"][cell.name] for cell in wanted if cell.name in results["cells"]}
    print(table(done))
    missed = [line for cell, record in done.items() for line in misses(cell, record)]
    print("\n".join(missed) or f"every bar is met in {len(done)} of {len(wanted)} cells")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
