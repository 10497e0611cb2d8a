"""What prefix reuse costs the host per request, and how often it copies; the layers themselves do not run.

    python benchmarks/prefix_host.py [--shared 0] [--rows 256] [--prompt 200] [--output 128] [--rounds 6]

Waves of rows are opened, read in one pass, decoded and closed, with and without reuse in turns. `--shared`: tokens that
all prompts begin with. On a GPU a copy is one launch per shape of tensor. The first round is not counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.core.types import Request, Row
from slipstream.models.run.torch_model import TorchModel

VOCAB = 1000
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
PARTS = "open", "read", "decode", "close"


def idle_model(retained: int, copies: Counter[int]) -> TorchModel:
    """A model whose layers do nothing, and which only counts copies."""
    model = TorchModel(
        AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=VOCAB, **SIZES)), retained=retained
    )
    model.cache.grow(1 << 18)
    row = Row(Request([1, 2, 3]))
    model.open([row])
    model.prefill([row], 8)  # makes the cache's tensors
    model.close([row])
    model.forward_pass.run = lambda *_, **__: (None, {})  # type: ignore[method-assign]
    model.cache.copy = lambda runs: copies.update({retained: 1})  # type: ignore[method-assign]
    return model


def wave(model: TorchModel, prompts: Sequence[list[int]], output: int) -> list[float]:
    """Microseconds per row for opening, reading, all cycles of decoding, and closing."""
    rows = [Row(Request(prompt, max_tokens=output)) for prompt in prompts]
    times = [time.perf_counter()]
    for row in rows:
        model.open([row])
    times.append(time.perf_counter())
    left = rows
    while left:
        model.prefill(left, 1 << 13)
        left = [row for row in left if model.cached(row) < row.length - 1]
    times.append(time.perf_counter())
    for n in range(output):
        model.record_written(rows, [[]] * len(rows))
        for row in rows:
            row.tokens.append(n)
    times.append(time.perf_counter())
    model.close(rows)
    times.append(time.perf_counter())
    return [(end - start) / len(rows) * 1e6 for start, end in pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"shared": 0, "rows": 256, "prompt": 200, "output": 128, "rounds": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given, rng, copies = parser.parse_args(), random.Random(0), Counter[int]()
    models = {"off": idle_model(0, copies), "on": idle_model(1 << 15, copies)}
    common = [rng.randrange(VOCAB) for _ in range(given.shared)]
    times: dict[str, Any] = {name: [] for name in models}
    for _ in range(given.rounds + 1):
        own = [[rng.randrange(VOCAB) for _ in range(given.prompt - given.shared)] for _ in range(given.rows)]
        for name, model in models.items():
            times[name].append(wave(model, [common + tokens for tokens in own], given.output))
    for name, rounds in times.items():
        parts = [statistics.median(part) for part in zip(*rounds[1:], strict=True)]
        shown = ", ".join(f"{part} {value:.0f}" for part, value in zip(PARTS, parts, strict=True))
        print(f"reuse {name:>3}: {sum(parts):.0f} us per request ({shown})")
    requests = given.rows * (given.rounds + 1)
    print(f"{copies[1 << 15] / requests:.4f} copies per request; {models['on'].prefixes.counts}")


if __name__ == "__main__":
    main()
