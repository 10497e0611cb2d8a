"""A mix of workloads: the policy against every single depth. Whole calls, prompts included.

    python benchmarks/mixed_work.py [--model smollm2-135m] [--drafter eagle] [--depths 0 1 2 3 5 7] [--batches 1]
        [--workload code:2,chat:2,maths:2,summary:2,rewriting:2] [--temperatures 0 1] [--tokens 128] [--repeats 5]
        [--warm 2] [--device auto] [--dtype auto] [--out FILE]

All prompts at all temperatures are shuffled once and then run in this order, `--batches` at a time. One engine's policy
chooses what to draft; a second engine runs the same requests with one depth for all of them, for each depth (0 is plain
decoding). On a GPU both capture the usual sizes first. They take turns, after `--warm` rounds that do not count.
Printed is the ratio of the policy's speed to the best single depth's, with its 95 % interval, the speed and tau of each
way, at batch 1 the speed also by workload and temperature. The exit code is 1 where the policy is not above the best
single depth.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from never_slower import shown

from slipstream.bench.measure.provenance import commit, load_average, provenance
from slipstream.bench.statistics import ratio
from slipstream.bench.workloads import load_workloads
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target


class Request(NamedTuple):
    workload: str
    prompt: str
    temperature: float


def requests(given: argparse.Namespace) -> list[Request]:
    mix = [
        Request(workload.name, item.turns[0], temperature)
        for workload in load_workloads(given.workload)
        for item in workload.items
        for temperature in given.temperatures
    ]
    random.Random(0).shuffle(mix)
    return mix


def timed(
    engine: NativeEngine, mix: Sequence[Request], batch: int, options: GenerationOptions
) -> tuple[list[float], float]:
    """Seconds of each group of `batch` requests, one group after the other, and tau over all."""
    seconds, cycles = [], 0
    for start in range(0, len(mix), batch):
        began = time.perf_counter()
        group = mix[start : start + batch]
        sampling = [Sampling(each.temperature) for each in group]
        handles = engine.submit_all([each.prompt for each in group], sampling, options)
        done = [handle.result() for handle in handles]
        seconds.append(time.perf_counter() - began)
        assert all(len(each.token_ids) == options.max_tokens for each in done)
        cycles += sum(each.stats.cycles for each in done)
    return seconds, len(mix) * options.max_tokens / cycles


def measured(target: Target, given: argparse.Namespace) -> list[dict[str, Any]]:
    mix, lines = requests(given), []
    ways = {f"depth {depth}": Speculation(depth=depth) if depth else Speculation(off=True) for depth in given.depths}
    limits = Limits(rows=max(given.batches), retained=0)
    with (
        NativeEngine(target, given.drafter, limits=limits, warm_up=True) as policy,
        NativeEngine(target, given.drafter, limits=limits, profile="none", warm_up=True) as fixed,
    ):
        for batch in given.batches:
            seconds: dict[str, list[list[float]]] = {name: [] for name in ("policy", *ways)}
            taus: dict[str, list[float]] = {name: [] for name in seconds}
            for number in range(given.warm + given.repeats):
                for name in seconds if number % 2 else reversed(seconds):
                    speculation = ways.get(name, Speculation())
                    options = GenerationOptions(given.tokens, ignore_eos=True, speculation=speculation)
                    found, tau = timed(policy if name == "policy" else fixed, mix, batch, options)
                    if number >= given.warm:
                        seconds[name].append([round(each, 6) for each in found])
                        taus[name].append(tau)
            mean_taus = {name: statistics.fmean(own) for name, own in taus.items()}
            lines.append(judged(seconds, mix, batch, given.tokens, mean_taus) | {"tau": mean_taus})
    return lines


def judged(
    seconds: dict[str, list[list[float]]], mix: Sequence[Request], batch: int, tokens: int, taus: dict[str, float]
) -> dict[str, Any]:
    """The policy's ratio to the best single depth, printed with the speed and the tau of every way."""
    speeds = {name: [len(mix) * tokens / sum(run) for run in runs] for name, runs in seconds.items()}
    means = {name: statistics.fmean(own) for name, own in speeds.items()}
    best = max((name for name in means if name != "policy"), key=means.__getitem__)
    estimate = ratio(speeds["policy"], speeds[best]).data()
    print(f"batch {batch}: the policy is at {shown(estimate)} of {best}, the best single depth")
    lines = {"all": means} | (by_kind(seconds, mix, tokens) if batch == 1 else {})
    print(f"{'tokens/s':16}" + "".join(f"{name:>9}" for name in means))
    for kind, own in lines.items():
        print(f"{kind:16}" + "".join(f"{value:9.1f}" for value in own.values()), flush=True)
    print(f"{'tau':16}" + "".join(f"{value:9.2f}" for value in taus.values()), flush=True)
    kinds = [(each.workload, each.temperature) for each in mix]
    return {"batch": batch, "best": best, "ratio": estimate, "speeds": speeds, "requests": kinds, "seconds": seconds}


def by_kind(seconds: dict[str, list[list[float]]], mix: Sequence[Request], tokens: int) -> dict[str, dict[str, float]]:
    """Tokens per second of each way, by workload and temperature."""
    kinds: dict[str, dict[str, float]] = {}
    for workload, temperature in sorted({(each.workload, each.temperature) for each in mix}):
        own = [
            number for number, each in enumerate(mix) if (each.workload, each.temperature) == (workload, temperature)
        ]
        kinds[f"{workload}, T = {temperature:g}"] = {
            name: tokens / statistics.fmean(run[number] for run in runs for number in own)
            for name, runs in seconds.items()
        }
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1, 2, 3, 5, 7])
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--workload", default="code:2,chat:2,maths:2,summary:2,rewriting:2")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    target = build_target(given.model, dtype=given.dtype, device=given.device)
    lines = measured(target, given)
    if given.out:
        origin = {"commit": commit(), "load": load_average(), **provenance(target.files, sys.argv)}
        given.out.write_text(json.dumps({"origin": origin, "mix": lines}, indent=1) + "\n")
    sys.exit(any(line["ratio"][0] <= 1 for line in lines))


if __name__ == "__main__":
    main()
