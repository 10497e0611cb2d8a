"""Predicted output: its speed against plain decoding, by the share of tokens in which prediction and output differ.

    python benchmarks/prediction.py [--model smollm2-135m] [--device auto] [--dtype auto] [--tokens 256]
        [--shares 0 0.01 0.05 0.2] [--temperatures 0 0.8] [--repeats 5] [--prompts 2] [--invariant] [--out FILE.json]

The output of plain decoding is made first. The prediction is that output with a share of its tokens replaced, deleted
or preceded by others, a third each. Both runs use one seed and the rule `coupled` (greedy at temperature 0), so both
must write the same tokens. Plain decoding and prediction take turns, after one round that is not timed. The table has
tau, both speeds, and the ratio of the speeds with its 95 % interval. The exit code is 1 if an output differs by more
than ties, which are counted. In 16 bits a tie that flips makes the rest another text, which the prediction does not
tell. `--invariant` avoids that: no number depends on how many tokens are scored together.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.measure.provenance import commit, load_average, provenance
from slipstream.bench.statistics import estimate, ratio
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Completion, GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine

PROMPTS = (
    "Write a Python class for a bank account with deposits, withdrawals and a transaction history.",
    "Write a letter to the city council about the broken street lights on Mill Road.",
    "Write a Python module with functions for the mean, the median and the variance of a list of numbers.",
    "Describe a walk through a forest in autumn.",
)
PLAIN = Speculation(off=True)


def changed(tokens: Sequence[int], share: float, seed: int) -> list[int]:
    """The tokens with a share of them replaced, deleted, or preceded by another token of the same text."""
    rng, edited = random.Random(seed), list[list[int]]([token] for token in tokens)
    for place in rng.sample(range(len(tokens)), round(share * len(tokens))):
        other = rng.choice(tokens)
        edited[place] = rng.choice([[other], [], [other, tokens[place]]])
    return [token for part in edited for token in part]


def run(engine: NativeEngine, prompt: str, sampling: Sampling, options: GenerationOptions) -> tuple[Completion, float]:
    began = time.perf_counter()
    (handle,) = engine.submit(prompt, sampling, options)
    completion = handle.result()
    return completion, time.perf_counter() - began


def measure(
    engine: NativeEngine, prompts: Sequence[str], share: float, sampling: Sampling, tokens: int, repeats: int
) -> dict[str, Any]:
    plain = GenerationOptions(tokens, ignore_eos=True, speculation=PLAIN)
    speeds: dict[str, list[float]] = {"plain": [], "prediction": []}
    emitted = cycles = ties = 0
    wrong = False
    for prompt in prompts:
        truth, _ = run(engine, prompt, sampling, plain)
        prediction = engine.text.decode(changed(truth.token_ids, share, seed=len(prompt)))
        predicted = GenerationOptions(tokens, ignore_eos=True, prediction=prediction)
        for repeat in range(-1, repeats):  # the first round is a warm-up
            both = [("plain", plain), ("prediction", predicted)]
            for name, options in both if repeat % 2 else reversed(both):
                completion, seconds = run(engine, prompt, sampling, options)
                if repeat < 0:
                    continue
                speeds[name].append(tokens / seconds)
                if name == "prediction":
                    emitted, cycles = emitted + completion.stats.emitted, cycles + completion.stats.cycles
                    (same,) = engine.agreements(prompt, sampling, options, [completion], [truth]) or [None]
                    ties += 0 if same is None else same.ties
                    wrong |= same is not None and same.real is not None
    return {
        "share": share,
        "temperature": sampling.temperature,
        "tau": round(emitted / cycles, 2),
        "plain": round(estimate(speeds["plain"]).value, 1),
        "prediction": round(estimate(speeds["prediction"]).value, 1),
        "ratio": ratio(speeds["prediction"], speeds["plain"]).data(),
        "flipped_ties": ties,
        "same_output": not wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.01, 0.05, 0.2])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=2, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--invariant", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results, loading = [], {"device": given.device, "dtype": given.dtype}
    with NativeEngine(given.model, "none", invariant=given.invariant or None, **loading) as engine:
        print(f"{engine.label}, {given.tokens} tokens, {given.prompts} prompts, {given.repeats} repeats")
        for temperature in given.temperatures:
            sampling = Sampling(temperature, seed=None if temperature == 0 else 7)
            for share in given.shares:
                line = measure(engine, PROMPTS[: given.prompts], share, sampling, given.tokens, given.repeats)
                results.append(line)
                value, low, high = line["ratio"]
                interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
                print(
                    f"T {temperature:g}, {share:4.0%} changed: tau {line['tau']:5.2f}, plain {line['plain']:7.1f} t/s, "
                    f"prediction {line['prediction']:7.1f} t/s, ratio {value:.2f}{interval}, "
                    f"{'same output' if line['same_output'] else 'OUTPUT DIFFERS'}, {line['flipped_ties']} ties",
                    flush=True,
                )
        origin = {"commit": commit(), "load": load_average(), **provenance(engine.target.files, sys.argv)}
    if given.out:
        given.out.write_text(json.dumps({"origin": origin, "results": results}, indent=1) + "\n")
    sys.exit(not all(line["same_output"] for line in results))


if __name__ == "__main__":
    main()
