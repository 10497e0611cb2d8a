"""The bars of the policy: hopeless text against plain decoding, and the first tokens after a start with a profile.

    python benchmarks/never_slower.py hopeless [--drafter eagle] [--batches 1 8 64] [--repeats 5] [--tokens 128]
        [--warm-seconds 3]
    python benchmarks/never_slower.py start [--drafter eagle] [--repeats 5] [--tokens 200] [--profile FILE]

Both take [--model smollm2-135m] [--device auto] [--dtype auto] [--processor-time] [--bar 0.97] [--out FILE].

hopeless: prompts of random letters at temperature 1.5, whole calls, prompts included. An engine whose policy chooses
what to draft and an engine without a drafter take turns. All requests of a batch are submitted at once. Printed is the
ratio of their speeds with its 95 % interval. On a GPU both capture the usual sizes first (`warm_up`). Before each batch
both run for `--warm-seconds` (3).

start: an engine with a profile is opened again and again. Its first tokens are compared with the same request after
1,000 further tokens. One request of a few tokens (`--warm`) comes before: it loads weights and, on a GPU, captures the
first graphs. Without `--profile` a profile is measured first. `cold` is the same without a profile.

`--processor-time` uses the processor seconds of this process in place of the clock, for machines that others use.
The exit code is 1 where a ratio misses the bar.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.measure.provenance import commit, load_average, provenance
from slipstream.bench.profile.assemble import make_profile
from slipstream.bench.profile.measure import ProfileSettings
from slipstream.bench.statistics import ratio
from slipstream.bench.workloads import load_workloads
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target

STEADY = 1000  # tokens before a speed counts as steady


def speed(
    engine: NativeEngine, prompts: Sequence[str], sampling: Sampling, tokens: int, clock: Callable[[], float]
) -> float:
    """Tokens per second of whole calls, all requests at the same time."""
    options = GenerationOptions(tokens, ignore_eos=True)
    began = clock()
    handles = engine.submit_all(prompts, [sampling] * len(prompts), options)
    count = sum(len(handle.result().token_ids) for handle in handles)
    return count / (clock() - began)


def nonsense(seed: int, count: int) -> list[str]:
    """Prompts of random letters."""
    rng = random.Random(seed)
    letters = string.ascii_letters + string.digits + " "
    return ["".join(rng.choices(letters, k=100)) for _ in range(count)]


def hopeless(target: Target, given: argparse.Namespace, clock: Callable[[], float]) -> list[dict[str, Any]]:
    lines, sampling, limits = [], Sampling(1.5), Limits(rows=max(given.batches), retained=0)
    with (
        NativeEngine(target, given.drafter, limits=limits, warm_up=True) as policy,
        NativeEngine(target, "none", limits=limits, warm_up=True) as plain,
    ):
        for batch in given.batches:
            speeds: dict[str, list[float]] = {"policy": [], "plain": []}
            both = {"policy": policy, "plain": plain}
            for engine in both.values():
                began, seed = time.perf_counter(), -1
                while time.perf_counter() - began < given.warm_seconds:
                    speed(engine, nonsense(seed, batch), sampling, given.tokens, clock)
                    seed -= 1
            for repeat in range(given.repeats):
                for name in both if repeat % 2 else reversed(both):
                    speeds[name].append(speed(both[name], nonsense(repeat, batch), sampling, given.tokens, clock))
            estimate = ratio(speeds["policy"], speeds["plain"])
            lines.append({"batch": batch, "ratio": estimate.data(), "speeds": speeds})
            print(f"hopeless, batch {batch}: {shown(estimate.data())} of plain decoding", flush=True)
    return lines


def start(target: Target, given: argparse.Namespace, clock: Callable[[], float]) -> list[dict[str, Any]]:
    path = given.profile
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            settings = ProfileSettings({given.drafter: {}}, workload="code:2,chat:2", batches=(1,), temperatures=(0.0,))
            _, path = make_profile(target, settings, Path(folder) / "profile.json")
        prompts = [item.turns[0] for workload in load_workloads("code:3,chat:3,maths:3") for item in workload.items]
        speeds: dict[str, list[float]] = {"first": [], "steady": [], "cold": []}
        sampling, limits = Sampling(0.0), Limits(retained=0)
        for repeat in range(given.repeats):
            text = prompts[repeat % len(prompts)]
            with NativeEngine(target, given.drafter, limits=limits, profile=path) as engine:
                engine.generate("Hello", sampling, max_tokens=given.warm, ignore_eos=True)
                speeds["first"].append(speed(engine, [text], sampling, given.tokens, clock))
                for n in range(-(-STEADY // given.tokens)):
                    speed(engine, [prompts[(repeat + n) % len(prompts)]], sampling, given.tokens, clock)
                speeds["steady"].append(speed(engine, [text], sampling, given.tokens, clock))
            with NativeEngine(target, given.drafter, limits=limits, profile="none") as engine:
                engine.generate("Hello", sampling, max_tokens=given.warm, ignore_eos=True)
                speeds["cold"].append(speed(engine, [text], sampling, given.tokens, clock))
    lines = []
    for name in ("first", "cold"):
        estimate = ratio(speeds[name], speeds["steady"])
        about = "with a profile" if name == "first" else "without a profile"
        print(f"first {given.tokens} tokens {about}: {shown(estimate.data())} of the steady speed", flush=True)
        lines.append({"start": about, "judged": name == "first", "ratio": estimate.data()})
    return [{**line, "speeds": speeds} for line in lines]


def shown(data: Sequence[float | None]) -> str:
    value, low, high = data
    return f"{value:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("hopeless", "start"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--warm", type=int, default=16)
    parser.add_argument("--warm-seconds", type=float, default=3.0)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--bar", type=float, default=0.97)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.tokens = given.tokens or (128 if given.what == "hopeless" else 200)
    clock = time.process_time if given.processor_time else time.perf_counter
    target = build_target(given.model, dtype=given.dtype, device=given.device)
    lines = (hopeless if given.what == "hopeless" else start)(target, given, clock)
    if given.out:
        origin = {"commit": commit(), "load": load_average(), **provenance(target.files, sys.argv)}
        given.out.write_text(json.dumps({"origin": origin, "bar": given.bar, given.what: lines}, indent=1) + "\n")
    sys.exit(any(line["ratio"][0] < given.bar for line in lines if line.get("judged", True)))


if __name__ == "__main__":
    main()
