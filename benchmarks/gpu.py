"""Everything about a GPU in one call: is it right, how far is it from the price of the bytes, what does a token cost.

    python benchmarks/gpu.py --model smollm2-135m --head eagle --out results.json

Needs torch, triton and transformers alone. Parts: `passes` times one pass of an 8B-shaped model of random weights
against bytes read / measured bandwidth; `engines` the engine beside transformers' `generate`, interleaved; `steady`
counts what a cycle allocates, compiles and waits for; `same` compares captured cycles with the other path, and tokens
across batches; `energy` reads the driver's counter; `rounded` what weights in eight bits do to laws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from slipstream.bench.energy import Meter
from slipstream.bench.likeness import laws, likeness
from slipstream.bench.provenance import commit
from slipstream.bench.workloads import load_workloads
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Speculation, Wish
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.cache import Cache
from slipstream.models.gpu_decoder import GpuDecoder
from slipstream.models.packing import Line, Piece
from slipstream.models.rounded import round_linears
from slipstream.models.torch_model import TorchModel

BIG = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
}
CONTEXT = 512
WAYS = {"plain": Speculation(depth=0), "eagle 3": Speculation(depth=3), "eagle 5": Speculation(depth=5)}
TREES = {f"tree {nodes}": Speculation(shape=nodes) for nodes in (8, 16, 24)}
CHOSEN = {f"{name}, chosen": replace(how, verify="chosen") for name, how in TREES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--head", default="eagle")
    parser.add_argument("--parts", nargs="+", default=["same", "steady", "engines", "energy", "passes", "rounded"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "model": asked.model}
    found |= {"commit": commit(), "bandwidth": bandwidth()}
    print(f"{found['device']}: {found['bandwidth'] / 1e12:.2f} TB/s", flush=True)
    parts: dict[str, Callable[[argparse.Namespace, dict[str, Any]], Any]] = {
        "same": same, "steady": steady, "engines": engines, "energy": energy, "passes": passes, "rounded": rounded,
    }  # fmt: skip
    for name in asked.parts:
        began = time.perf_counter()
        try:
            found[name] = parts[name](asked, found)
        except Exception as error:  # the other parts are still worth having
            found[name] = {"failed": repr(error)}
        print(f"{name} ({time.perf_counter() - began:.0f} s): {json.dumps(found[name])}", flush=True)
        torch.cuda.empty_cache()
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")


def bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (timed(lambda: target.copy_(source), 20) / 1000)


def timed(run: Callable[[], object], count: int = 50) -> float:
    """Milliseconds, the median of five stretches."""
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / count)
    return statistics.median(times[1:])


def passes(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """One pass of an 8B-shaped model, against reading its weights once."""
    model = _big()
    read = sum(p.numel() * p.element_size() for p in model.parameters()) - model.get_input_embeddings().weight.nbytes
    limit = read / found["bandwidth"] * 1000
    told: dict[str, Any] = {"bytes": read, "limit_ms": limit, "transformers_ms": _eager(model)}
    for weights in (None, "int8", "fp8"):
        if weights:
            model = _big()
            assert round_linears(model, weights), "nothing was rounded"
        decoder = TorchModel(model).decoder
        assert isinstance(decoder, GpuDecoder), "its layers are run by its own modules"
        for name, rows, tokens in (("1", 1, 1), ("8", 1, 8), ("16 rows x 6", 16, 6))[: 2 if weights else 3]:
            ms = _pass(decoder, rows, tokens)
            told[f"{name}, {weights}" if weights else name] = {"ms": ms, "of_limit": ms / limit}
        del model, decoder
        torch.cuda.empty_cache()
    return told


def _big() -> Any:
    """An 8B-shaped model of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**BIG, tie_word_embeddings=False))
    torch.set_default_dtype(torch.float32)
    return model


def _pass(decoder: GpuDecoder, rows: int, tokens: int) -> float:
    cache = Cache(1024, 16)
    lines = [Line.of(cache.take(), CONTEXT, range(tokens)) for _ in range(rows)]
    kept = torch.arange(rows * tokens, device="cuda")
    with torch.inference_mode():
        decoder.forward(cache, [Piece(line) for line in lines], (0, len(decoder.net.blocks)), None, (), kept)
        (run,) = decoder._graphs.values()
        return timed(run._replay, 20)


def rounded(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Laws of weights in eight bits against bfloat16: agreement on the likeliest token, KL, perplexity."""
    truth, ids, told = None, list[int](), dict[str, Any]()
    for dtype in ("bfloat16", "int8", "fp8"):
        target = build_target(asked.model, dtype=dtype)
        assert isinstance(target.model.decoder, GpuDecoder), "its layers are run by its own modules"
        if not ids:
            text = "\n\n".join(item.turns[0] for item in load_workloads("summary")[0].items)
            ids = target.text.encode(text, raw=True)[:1024]
        found_laws = laws(target.model, ids)
        truth = found_laws if truth is None else truth
        told[dtype] = {"label": target.label, **likeness(found_laws, truth, ids)}
    return told


def _eager(model: Any) -> float:
    """transformers' own forward of one token after a context, milliseconds."""
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.inference_mode():
        model(torch.zeros(1, CONTEXT, dtype=torch.long, device="cuda"), past_key_values=cache, use_cache=True)
        token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        return timed(lambda: model(token, past_key_values=cache, use_cache=True), 5)


def open_engine(asked: argparse.Namespace, **more: Any) -> NativeEngine:
    return NativeEngine(build_target(asked.model, **more), drafter=asked.head, limits=Limits(rows=64, retained=0))


def prompts(count: int) -> list[str]:
    loads = load_workloads("code,chat,maths,summary")
    texts = [one.items[i].turns[0] for i in range(3) for one in loads]
    return [texts[i % len(texts)] for i in range(count)]


def answer(
    engine: NativeEngine, texts: list[str], tokens: int, how: Speculation, warm: float = 0.0
) -> tuple[int, float, list[list[int]]]:
    """Tokens, tau and the answers, all requests at once."""
    wish = Wish(max_tokens=tokens, speculation=how, ignore_ends=True)
    tickets = [engine.submit(text, Sampling(temperature=warm, seed=n), wish)[0] for n, text in enumerate(texts)]
    done = [ticket.result() for ticket in tickets]
    cycles = sum(one.tally.cycles for one in done)
    count = sum(len(one.tokens) for one in done)
    return count, count / max(1, cycles), [one.tokens for one in done]


def engines(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second, prompts included: the engine's ways and transformers' `generate`, one after the other."""
    engine, told = open_engine(asked), dict[str, Any]()
    theirs = _generate(asked, engine)
    for batch in asked.batches:
        for warm in (0.0, 0.8) if batch == 1 else (0.0,):
            cell = told[f"batch {batch}, T {warm}"] = _side_by_side(asked, engine, theirs, batch, warm)
            print(f"batch {batch}, T {warm}: {json.dumps(cell)}", flush=True)
    engine.close()
    return told


def _side_by_side(asked: argparse.Namespace, engine: NativeEngine, theirs: Any, batch: int, warm: float) -> Any:
    texts = prompts(max(4, batch))
    ways: dict[str, Callable[[], tuple[int, float]]] = {
        name: lambda how=how: answer_all(engine, texts, batch, asked.tokens, how, warm)
        for name, how in {**WAYS, **(CHOSEN if warm else TREES), "auto": Speculation()}.items()
    }
    if warm == 0:
        ways["transformers"] = lambda: theirs(texts, batch)
    if warm == 0 and batch == 1:  # it takes no more than one at a time
        ways["transformers, prompt lookup"] = lambda: theirs(texts, batch, prompt_lookup_num_tokens=5)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    taus = {}
    for repeat in range(asked.repeats + 1):  # the first is a warm-up
        for name, run in ways.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            count, taus[name] = run()
            if repeat:
                speeds[name].append(count / (time.perf_counter() - began))
    return {
        name: {"tokens_per_second": statistics.median(each), "spread": [min(each), max(each)], "tau": taus[name]}
        for name, each in speeds.items()
    }


def answer_all(
    engine: NativeEngine, texts: list[str], batch: int, tokens: int, how: Speculation, warm: float
) -> tuple[int, float]:
    counts = [answer(engine, texts[i : i + batch], tokens, how, warm)[:2] for i in range(0, len(texts), batch)]
    return sum(count for count, _ in counts), statistics.mean(tau for _, tau in counts)


def _generate(asked: argparse.Namespace, engine: NativeEngine) -> Callable[..., tuple[int, float]]:
    from transformers import AutoModelForCausalLM

    text = engine.target.text
    model = AutoModelForCausalLM.from_pretrained(engine.target.found.path, dtype=torch.bfloat16).to("cuda").eval()

    def run(texts: list[str], batch: int, **how: Any) -> tuple[int, float]:
        total = 0
        for i in range(0, len(texts), batch) if batch > 1 else range(1):  # one is enough: it is the slow one
            lines = [text.encode(one) for one in texts[i : i + batch]]
            wide = max(map(len, lines))
            ids = torch.tensor([[0] * (wide - len(line)) + line for line in lines], device="cuda")
            mask = torch.tensor([[0] * (wide - len(line)) + [1] * len(line) for line in lines], device="cuda")
            model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=asked.tokens,
                min_new_tokens=asked.tokens,
                do_sample=False,
                pad_token_id=0,
                **how,
            )
            total += len(lines) * asked.tokens
        return total, 1.0

    return run


def steady(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """What a cycle does besides computing, once every size was seen: one read, and nothing else."""
    engine = open_engine(asked)
    express, decoder = engine._batch._express, engine.target.model.decoder
    assert express is not None
    assert isinstance(decoder, GpuDecoder)
    told = {}
    for name, how in {**WAYS, **TREES}.items():
        for _ in range(2):
            answer(engine, prompts(1), 96, how)
        before = express.cycles, decoder.captures, torch.cuda.memory_stats()["num_device_alloc"]
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            answer(engine, prompts(1), 96, how)
        torch.cuda.set_sync_debug_mode("default")
        cycles = express.cycles - before[0]
        waits = [str(one.message) for one in seen if "synchroniz" in str(one.message)]
        told[name] = {
            "cycles": cycles,
            "waits_per_cycle": len(waits) / max(1, cycles),
            "captures": decoder.captures - before[1],
            "device_allocations": torch.cuda.memory_stats()["num_device_alloc"] - before[2],
        }
    for kind, cycle in express._cycles.items():
        halves = cycle.halves
        first, second = timed(halves.begin), timed(halves.rest)
        both = timed(lambda halves=halves: (halves.begin(), halves.rest()))
        told[str(kind[0])] = {"draft_ms": first, "rest_ms": second, "both_ms": both}
    engine.close()
    return told


def same(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Captured cycles against the other path in invariant mode, and rows alone against rows together: tokens equal."""
    engine = open_engine(asked, invariant=True)
    batch, texts, told = engine._batch, prompts(6), dict[str, Any]()
    express = batch._express
    for warm in (0.0, 1.0):
        coupled = {"eagle 3, coupled": Speculation(depth=3, verify="coupled")}
        for name, how in {**WAYS, **coupled}.items():
            if warm == 0 and how.verify:
                continue
            batch._express = express
            together, alone = (
                [tokens for i in range(0, 6, size) for tokens in answer_seeded(engine, texts, i, size, how, warm)]
                for size in (6, 1)
            )
            batch._express = None
            other = answer_seeded(engine, texts, 0, 6, how, warm)
            told[f"{name}, T {warm}"] = {
                "alone = together": _equal(alone, together),
                "captured = not": _equal(together, other),
            }
            if warm == 0 or how.verify:
                key = "coupled" if how.verify else "greedy"
                first = told.setdefault(f"first {key}", together)
                told[f"{name}, T {warm}"]["as the first way"] = _equal(first, together)
    told = {name: value for name, value in told.items() if not name.startswith("first")}
    told["failures"] = dict(batch.failures)
    engine.close()
    return told | _same_trees(asked)


def _same_trees(asked: argparse.Namespace) -> dict[str, Any]:
    """Trees captured against trees grown by the host: the same nodes at the same places, so the same bits."""
    engine, texts, told = open_engine(asked), prompts(6), dict[str, Any]()
    express = engine._batch._express
    for warm, ways in ((0.0, TREES), (0.8, CHOSEN)):
        for name, how in ways.items():
            engine._batch._express = express
            whole = answer_seeded(engine, texts, 0, 1, how, warm)
            engine._batch._express = None
            told[f"{name}, T {warm}"] = {"captured = not": _equal(whole, answer_seeded(engine, texts, 0, 1, how, warm))}
    engine.close()
    return told


def answer_seeded(
    engine: NativeEngine, texts: list[str], start: int, size: int, how: Speculation, warm: float
) -> list[list[int]]:
    wish = Wish(max_tokens=64, speculation=how, ignore_ends=True)
    tickets = [engine.submit(texts[n], Sampling(temperature=warm, seed=n), wish)[0] for n in range(start, start + size)]
    return [ticket.result().tokens for ticket in tickets]


def _equal(one: list[list[int]], other: list[list[int]]) -> float:
    """The share of tokens that agree up to the first that does not."""
    pairs = list(zip(one, other, strict=True))
    same = sum(next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x)) for x, y in pairs)
    return same / sum(len(x) for x, _ in pairs)


def energy(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Joules per token over windows of seconds, and what the board draws when it does nothing."""
    meter, reason = Meter.open()
    if meter is None:
        return {"none": reason}
    engine, told = open_engine(asked), dict[str, Any]()
    told["idle_watts"] = meter.idle()
    for name, how in WAYS.items():
        answer(engine, prompts(1), 64, how)
        count, began = 0, time.perf_counter()
        with meter.window() as window:
            while time.perf_counter() - began < 3.0:
                count += answer(engine, prompts(1), 200, how)[0]
        told[name] = {
            "joules_per_token": window.joules / count,
            "watts": window.watts,
            "idle_share": told["idle_watts"] * window.seconds / window.joules,
        }
    engine.close()
    return told


if __name__ == "__main__":
    main()
