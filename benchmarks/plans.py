"""What a plan costs: decoding through a plan against the same arguments as flags, and the time to compile plans.

    python benchmarks/plans.py --repeats 60

Two engines share one loaded model. They decode the same prompt in turns, and the order changes in every repeat. A ratio
is the speed through the plan divided by the speed of the arguments, by wall-clock time and by processor time; both have
intervals of 95 %. Processor time is the better figure on a machine that others use. Compiling is reading a plan file,
checking it against the catalogue of drafters, and lowering it to the settings of the engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from slipstream.bench.statistics import Estimate, ratio
from slipstream.core.sampling import Sampling
from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.plan.ir.build import build_plan
from slipstream.plan.ir.check import check_plan
from slipstream.plan.ir.library import library, load_plan
from slipstream.plan.lower.native import lower_native

PROMPT = "one two three four one two three four one two"
Spent = tuple[float, float]
"""Seconds by the clock, and seconds of the processor."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("-d", "--drafter", default="ngram")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=60)
    args = parser.parse_args()
    target = build_target(args.model)
    plan = build_plan(args.model, args.drafter, depth=args.depth)
    limits = Limits(retained=0)
    with (
        NativeEngine(target, args.drafter, depth=args.depth, limits=limits) as by_flags,
        NativeEngine(target, plan=plan, limits=limits) as by_plan,
    ):
        runs = _in_turns((by_plan, by_flags), args.max_tokens, args.repeats)
    report = {
        "model": target.label,
        "drafter": args.drafter,
        "depth": args.depth,
        "max_tokens": args.max_tokens,
        "repeats": args.repeats,
        "same_tokens": runs[2],
        "speed_ratio": _shown(ratio([wall for wall, _ in runs[1]], [wall for wall, _ in runs[0]])),
        "processor_ratio": _shown(ratio([cpu for _, cpu in runs[1]], [cpu for _, cpu in runs[0]])),
        "compile_ms": {name: _compile_ms(name) for name in library()},
    }
    print(json.dumps(report))


def _in_turns(
    engines: tuple[NativeEngine, NativeEngine], max_tokens: int, repeats: int
) -> tuple[list[Spent], list[Spent], bool]:
    """The times of both engines, and whether they wrote the same tokens."""
    times: tuple[list[Spent], list[Spent]] = [], []
    same = True
    for repeat in range(repeats + 2):  # the first two are warm-up
        order = (0, 1) if repeat % 2 else (1, 0)
        tokens = {}
        for number in order:
            spent, tokens[number] = _timed(lambda number=number: _decode(engines[number], max_tokens))
            if repeat >= 2:
                times[number].append(spent)
        same &= tokens[0] == tokens[1]
    return *times, same


def _decode(engine: NativeEngine, max_tokens: int) -> list[int]:
    (sample,) = engine.generate(PROMPT, Sampling(0), max_tokens=max_tokens, ignore_eos=True)
    return list(sample.token_ids)


def _timed(call: Callable[[], list[int]]) -> tuple[Spent, list[int]]:
    wall, processor = time.perf_counter(), time.process_time()
    tokens = call()
    return (time.perf_counter() - wall, time.process_time() - processor), tokens


def _compile_ms(name: str, repeats: int = 50) -> float:
    """The median of milliseconds to read, check and lower a plan. The first time is left out: it imports drafters."""
    catalogue, times = DrafterCatalogue(), []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        lower_native(check_plan(load_plan(name), catalogue, name))
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times[1:]), 3)


def _shown(estimate: Estimate) -> dict[str, object]:
    low, high = estimate.interval or (None, None)
    return {"ratio": round(estimate.value, 4), "interval": [low and round(low, 4), high and round(high, 4)]}


if __name__ == "__main__":
    main()
