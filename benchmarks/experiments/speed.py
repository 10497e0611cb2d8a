"""Speed of a drafter in the engine, greedy and at temperature 1, in turn with plain decoding of the same prompts."""

from __future__ import annotations

import time
from pathlib import Path

from settings import Sizes
from text_data import TextData

import slipstream as ss
from slipstream.engines.native.engine import NativeEngine

REPEATS = 3  # after one that warms up


def measure_speed(model: Path, drafter: Path, data: TextData, sizes: Sizes, device: str) -> dict[str, float]:
    """Tau, tokens per second, and seconds of a cycle, of the fastest repeat."""
    prompts = data.prompts(sizes.speed_prompts, sizes.prompt, held=True)
    draft = ss.Speculation(depth=sizes.depth)
    ways = {"plain": (ss.Speculation(off=True), 0.0), "greedy": (draft, 0.0), "sampled": (draft, 1.0)}
    best: dict[str, tuple[float, int, int]] = {}  # seconds, cycles, emitted tokens
    with NativeEngine(str(model), str(drafter), device=device, limits=ss.Limits(rows=1, retained=0)) as engine:
        for repeat in range(REPEATS + 1):
            for way, (speculation, heat) in ways.items():
                began, done = time.perf_counter(), []
                for n, prompt in enumerate(prompts):
                    sampling = ss.Sampling(temperature=heat, seed=n)
                    done += engine.generate(
                        [prompt], sampling, max_tokens=sizes.speed_tokens, speculation=speculation, ignore_eos=True
                    )
                spent = time.perf_counter() - began
                if repeat and (way not in best or spent < best[way][0]):
                    best[way] = spent, sum(c.stats.cycles for c in done), sum(len(c.token_ids) for c in done)
    plain, greedy, sampled = (best[way] for way in ways)
    return {
        "tau": greedy[2] / greedy[1],
        "tau_sampled": sampled[2] / sampled[1],
        "cycle_seconds": greedy[0] / greedy[1],
        "plain_cycle_seconds": plain[0] / plain[1],
        "tokens_per_second": greedy[2] / greedy[0],
        "tokens_per_second_sampled": sampled[2] / sampled[0],
        "plain_tokens_per_second": plain[2] / plain[0],
    }
