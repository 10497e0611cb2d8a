"""Time to the first token of prompts that share a long beginning, with and without reuse, through the engine.

    python benchmarks/prefix.py [--model smollm2-135m] [--prefix 1000] [--own 20] [--rounds 5] [--bar 0.2]

Two engines share one set of weights, one keeps beginnings and one does not, and they take turns. Every prompt is the
shared beginning and some tokens of its own that no other prompt has; the first prompt, which finds nothing, is not
counted. The median of each side is printed with the ratio; beyond the bar the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time

from slipstream.core.sampling import Sampling
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target


def twin(target: Target) -> Target:
    """The same weights with a cache of their own."""
    model = target.model
    own = TorchModel(model.model, context=model.context, anatomy=model.anatomy)
    return Target(target.files, own, target.text, target.weights, target.trust_remote_code)


def first_token(engine: NativeEngine, prompt: list[int]) -> float:
    started = time.perf_counter()
    for _ in engine.stream(prompt, Sampling(temperature=0), max_tokens=2, ignore_eos=True):
        return time.perf_counter() - started
    raise AssertionError("no token came")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--own", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bar", type=float, default=0.2)
    given = parser.parse_args()
    target, rng = build_target(given.model), random.Random(0)
    engines = {
        "reuse": NativeEngine(target, "none", limits=Limits()),
        "anew": NativeEngine(twin(target), "none", limits=Limits(retained=0)),
    }
    shared = [rng.randrange(target.model.vocab) for _ in range(given.prefix)]
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(given.rounds + 1):
        prompt = shared + [rng.randrange(target.model.vocab) for _ in range(given.own)]
        for name, engine in engines.items():
            seconds[name].append(first_token(engine, prompt))
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    ratio = median["reuse"] / median["anew"]
    print(f"{target.label}, {given.prefix} shared tokens and {given.own} own ones, {given.rounds} rounds")
    for name, times in seconds.items():
        print(f"{name:>6}: median {median[name]:.3f} s, {min(times[1:]):.3f} to {max(times[1:]):.3f} s")
    print(f" ratio: {ratio:.3f} (bar {given.bar})")
    stats = engines["reuse"].stats
    print({name: stats[name] for name in stats if name.startswith(("prefix", "retained"))})
    for engine in engines.values():
        engine.close()
    sys.exit(ratio > given.bar)


if __name__ == "__main__":
    main()
