"""An 8B-shaped model of random weights by context: passes, prompts, and steps through the engine.

    python benchmarks/gpu_context.py --out results.json [--parts passes prompts engine mixed tune]

`passes` times one captured pass against the bytes it must read, weights and cached keys and values, at the bandwidth of
a large copy. `prompts` reads prompts in one pass and counts the arithmetic of the layers and of causal attention.
`engine` runs plain decoding through the engine and divides by the number of steps. `mixed` decodes prompts of 100 to
4,000 tokens together, with the default limits, and says what memory the KV cache takes. `tune` tries other sizes of the
attention kernel's tiles. Needs torch, triton and transformers alone.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_common import bandwidth, timed
from gpu_passes import BIG, _big, _read

from slipstream.bench.measure.provenance import commit
from slipstream.core.device import next_power_of_two
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu.attention import shapes, splits
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.segments import round_up
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target

LONGEST = 1 << 16
CELLS = [  # rows, tokens of each, context
    *((1, 1, context) for context in (512, 4096, 16384, 60000)),
    *((1, 8, context) for context in (512, 4096, 16384, 60000)),
    *((8, 1, 4096), (8, 6, 4096), (32, 1, 4096), (32, 4, 2048), (64, 1, 1024)),
]
PROMPTS = (2048, 8192)
TILES = [  # programs, places of a step, stages, warps
    *((528, 64, 3, 4), (528, 64, 2, 4), (528, 128, 2, 4), (528, 128, 2, 8), (528, 64, 4, 4), (528, 32, 4, 4)),
    *((264, 64, 3, 4), (264, 128, 2, 8), (264, 64, 4, 4), (1056, 64, 3, 4), (1056, 64, 2, 4), (132, 128, 3, 8)),
]
Decoder = GpuPasses


def run_pass(decoder: Decoder, rows: int, tokens: int, context: int, count: int = 20) -> float:
    """Milliseconds of one captured pass."""
    places = context + tokens + 8
    cache = KVCache(rows * round_up(places))
    lines = [RowSlice(RowEntries.of(cache.take(places), context, range(tokens))) for _ in range(rows)]
    kept = torch.arange(rows * tokens, device="cuda")
    decoder._graphs.clear()
    decoder._met.clear()
    for _ in range(2):  # what is met again is captured
        decoder.forward(cache, lines, (0, decoder.layers), None, (), kept)
    (run,) = decoder._graphs.values()
    return timed(run._replay, count)


def limit_of(read: int, rows: int, context: int, speed: float) -> float:
    head_dim = BIG["hidden_size"] // BIG["num_attention_heads"]
    entry = 2 * 2 * BIG["num_key_value_heads"] * head_dim * BIG["num_hidden_layers"]  # bytes of a cached token
    return (read + rows * context * entry) / speed * 1000


def passes(decoder: Decoder, read: int, speed: float) -> dict[str, Any]:
    told = {}
    for rows, tokens, context in CELLS:
        ms, limit = run_pass(decoder, rows, tokens, context), limit_of(read, rows, context, speed)
        told[f"{rows} x {tokens} at {context}"] = {"ms": ms, "limit_ms": limit, "of_limit": ms / limit}
        print(
            f"{rows:3} rows x {tokens} tokens at {context:6}: {ms:7.2f} ms, {ms / limit:5.2f} of the limit", flush=True
        )
    return told


def prompts(decoder: Decoder, read: int, speed: float) -> dict[str, Any]:
    told = {}
    weights = read // 2 - BIG["hidden_size"] * BIG["vocab_size"]
    for tokens in PROMPTS:
        cache, kept = KVCache(tokens + 8), torch.tensor([tokens - 1], device="cuda")
        line = [RowSlice(RowEntries.of(cache.take(tokens + 8), 0, range(tokens)))]
        ms = timed(lambda: decoder.forward(cache, line, (0, decoder.layers), None, (), kept), 3)  # noqa: B023
        attention = 2 * tokens**2 * BIG["hidden_size"] * BIG["num_hidden_layers"]
        flops = 2 * weights * tokens + attention
        told[f"{tokens}"] = {"ms": ms, "tflops": flops / ms / 1e9}
        print(f"prompt of {tokens}: {ms:.1f} ms, {flops / ms / 1e9:.0f} TFLOP/s", flush=True)
    return told


def engine(model: TorchModel, tokens: int, batches: list[int]) -> dict[str, Any]:
    small = build_target("smollm2-135m")
    run, told = NativeEngine(Target(small.files, model, small.text), "none", limits=Limits(retained=0)), {}
    for batch in batches:
        seconds = {}
        for length in (16, 16, 16 + tokens, 16 + tokens):
            options = GenerationOptions(max_tokens=length, ignore_eos=True, speculation=Speculation(off=True))
            prompt = [list(range(100 + i, 612 + i)) for i in range(batch)]
            began = time.perf_counter()
            for handle in run.submit_all(prompt, [Sampling(temperature=0.0)] * batch, options):
                handle.result()
            seconds[length] = time.perf_counter() - began
        step = (seconds[16 + tokens] - seconds[16]) / tokens * 1000
        told[f"batch {batch}"] = {"ms": step}
        print(f"engine, batch {batch}: {step:.2f} ms a step", flush=True)
    run.close()
    return told


def mixed(model: TorchModel, rows: int, tokens: int) -> dict[str, Any]:
    """Rows of very different lengths, side by side."""
    small, draw = build_target("smollm2-135m"), random.Random(0)
    prompts = [[(7 * i + n) % 1000 + 100 for n in range(draw.randint(100, 4000))] for i in range(rows)]
    options = GenerationOptions(max_tokens=tokens, ignore_eos=True, speculation=Speculation(off=True))
    torch.cuda.reset_peak_memory_stats()
    seconds, most = list[float](), 0.0
    with NativeEngine(Target(small.files, model, small.text), "none", limits=Limits(retained=0)) as run:
        for _ in range(2):
            began = time.perf_counter()
            handles = run.submit_all(prompts, [Sampling(temperature=0.0)] * rows, options)
            while not (running := run.stats["running"]):
                time.sleep(0.01)
            most = max(most, running)  # those that have their places in the cache; none has ended yet
            first = [next(iter(handle)) for handle in handles]
            assert all(chunk.token_ids for chunk in first)
            ready = time.perf_counter()
            for handle in handles:
                handle.result()
            seconds = [ready - began, time.perf_counter() - ready]
        stats = run.stats
    lengths, held = [len(prompt) + tokens for prompt in prompts], model.cache.places * model.cache.token_bytes
    told = {
        "rows": rows,
        "running": most,
        "tokens": sum(lengths),
        "longest": max(lengths),
        "cache_gb": held / 1e9,
        "rectangle_gb": next_power_of_two(rows) * next_power_of_two(max(lengths)) * model.cache.token_bytes / 1e9,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "preemptions": stats["preemptions"],
        "prompt_tokens_per_second": (sum(lengths) - rows * tokens) / seconds[0],
        "tokens_per_second": rows * (tokens - 1) / seconds[1],
    }
    print("mixed:", {name: round(value, 1) for name, value in told.items()}, flush=True)
    return told


def tune(decoder: Decoder, read: int, speed: float) -> dict[str, Any]:
    told = {}
    for programs, tile, stages, warps in TILES:
        shapes.PROGRAMS, splits.TILE, splits.STAGES, splits.WARPS = programs, tile, stages, warps
        line = {}
        for rows, tokens, context in ((1, 1, 4096), (1, 1, 60000), (1, 8, 16384), (8, 6, 4096)):
            try:
                ms = run_pass(decoder, rows, tokens, context, 8) / limit_of(read, rows, context, speed)
            except Exception as error:  # tiles that do not fit
                ms = float("nan")
                print(repr(error)[:200], flush=True)
            line[f"{rows} x {tokens} at {context}"] = ms
        told[str((programs, tile, stages, warps))] = line
        print(programs, tile, stages, warps, {name: round(value, 3) for name, value in line.items()}, flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["passes", "prompts", "engine"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--rows", type=int, default=256, help="rows of different lengths")
    parser.add_argument("--tokens", type=int, default=64, help="steps through the engine")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    speed = bandwidth()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    results["bandwidth"] = speed
    print(f"{results['device']}: {speed / 1e12:.2f} TB/s", flush=True)
    big = _big(max_position_embeddings=LONGEST)
    read, model = _read(big), TorchModel(big)
    assert isinstance(model.decoder, GpuPasses), "its layers are run by its own modules"
    decoder = model.decoder
    parts: dict[str, Callable[[], Any]] = {
        "passes": lambda: passes(decoder, read, speed),
        "prompts": lambda: prompts(decoder, read, speed),
        "engine": lambda: engine(model, asked.tokens, asked.batches),
        "mixed": lambda: mixed(model, asked.rows, asked.tokens),
        "tune": lambda: tune(decoder, read, speed),
    }
    with torch.inference_mode():
        for name in asked.parts:
            began = time.perf_counter()
            try:
                results[name] = parts[name]()
            except Exception as error:  # the other parts are still worth having
                results[name] = {"failed": repr(error)}
                print(name, repr(error), flush=True)
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
            torch.cuda.empty_cache()
    if asked.out:
        asked.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
