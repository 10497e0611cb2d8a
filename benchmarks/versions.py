"""Two checkouts on one CPU, request by request in turn: has a change made decoding slower or faster?

    python benchmarks/versions.py OLD NEW [--way plain|depth1|depth2|depth3|policy] [--rounds 12]
                                          [--temperature 0 --top-k 0 --top-p 1 --min-p 0 --repetition-penalty 1]
                                          [--verify coupled] [--rows 1]

OLD and NEW are checkouts (folders with `src`). Each has a process of its own, with one thread, on the same core. Every
request runs in one and then in the other, in alternating order, so a change of the clock meets both. What counts is
processor time. The median of the paired ratios old / new is printed for each workload: 1.02 means that NEW takes 2 %
less. Where the pages of a package of weights lie in memory makes up to 5 %: remove the folder `packages` of
slipstream's cache before, so that both are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORKLOADS = ("chat", "code", "maths", "rewriting", "summary")
WAYS = {"plain": ("none", None), "policy": ("eagle", None)} | {f"depth{n}": ("eagle", n) for n in (1, 2, 3)}
DEFAULTS = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}  # of `Sampling`
WARM = 2  # rounds before any is counted
TOKENS = 48


def serve(way: str, params: dict[str, float], verify: str) -> None:
    """Answer the prompts on stdin, a JSON list a line that is answered together; print the processor time of each."""
    import torch

    import slipstream as ss

    torch.set_num_threads(1)
    drafter, depth = WAYS[way]
    rule = None if params["temperature"] == 0 else verify
    with ss.Engine("smollm2-135m", drafter=drafter, depth=depth, verify=rule) as engine:
        print("ready", flush=True)
        for line in sys.stdin:
            sampling = ss.Sampling(**params, seed=0)
            began = time.process_time()
            engine.generate(json.loads(line), sampling, max_tokens=TOKENS, ignore_eos=True)
            print(f"seconds {time.process_time() - began}", flush=True)


class Version:
    """A checkout in a process of its own."""

    def __init__(self, checkout: Path, way: str, params: dict[str, float], verify: str) -> None:
        pinned = ["taskset", "-c", "0"] if shutil.which("taskset") else []
        self._process = subprocess.Popen(
            [*pinned, sys.executable, __file__, "--serve", way, "--params", json.dumps(params), "--verify", verify],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str((checkout / "src").resolve()), "OMP_NUM_THREADS": "1"},
        )
        self._hear("ready")

    def seconds(self, prompts: list[str]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(prompts) + "\n")
        self._process.stdin.flush()
        return float(self._hear("seconds").split()[1])

    def _hear(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line
        raise RuntimeError("the process of a checkout has ended")

    def close(self) -> None:
        self._process.kill()


def compare(old: Version, new: Version, rounds: int, rows: int) -> dict[str, float]:
    folder = Path(__file__).parents[1] / "src/slipstream/bench/workloads"
    ratios: dict[str, list[float]] = {name: [] for name in WORKLOADS}
    for n in range(rounds + WARM):
        for name in WORKLOADS:
            lines = (folder / f"{name}.jsonl").read_text().splitlines()
            prompts = [json.loads(lines[i % len(lines)])["prompt"] for i in range(rows)]
            order = (old, new) if n % 2 else (new, old)
            seconds = {version: version.seconds(prompts) for version in order}
            if n >= WARM:
                ratios[name].append(seconds[old] / seconds[new])
    return {name: round(statistics.median(each), 3) for name, each in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--rounds", type=int, default=12)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--verify", default="coupled", help="the rule, above temperature 0")
    parser.add_argument("--rows", type=int, default=1, help="prompts that are answered together")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--params", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.params, asked.verify)
        return
    if asked.old is None or asked.new is None:
        parser.error("name two checkouts, the old one first")
    params = {name: getattr(asked, name) for name in DEFAULTS}
    for way in asked.way or WAYS:
        versions = [Version(checkout, way, params, asked.verify) for checkout in (asked.old, asked.new)]
        try:
            ratios = compare(*versions, asked.rounds, asked.rows)
            print(json.dumps({"way": way, "rows": asked.rows, **params, "old / new": ratios}), flush=True)
        finally:
            for version in versions:
                version.close()


if __name__ == "__main__":
    main()
