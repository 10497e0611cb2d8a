"""What must hold on a GPU: the same tokens by every way, steady cycles; and what a token takes in energy."""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
from gpu_common import TREES, WAYS, answer, open_engine, prompts, timed

from slipstream.bench.measure.energy import Meter
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.gpu.passes import GpuPasses

ROWS, LONG = 4, 32  # answers that are compared, and their tokens
CHOSEN = {f"{name}, chosen": replace(how, verify="chosen") for name, how in TREES.items()}


def steady(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """What a cycle does besides computing, once every size was seen: one read, and nothing else."""
    engine = open_engine(asked)
    runner, decoder = engine._batch.captured.runner, engine.target.model.decoder
    assert runner is not None
    assert isinstance(decoder, GpuPasses)
    told = {}
    for name, how in {**WAYS, **TREES}.items():
        for _ in range(2):
            answer(engine, prompts(1), 96, how)
        before = runner.cycles, runner.captures + decoder.captures, torch.cuda.memory_stats()["num_device_alloc"]
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            answer(engine, prompts(1), 96, how)
        torch.cuda.set_sync_debug_mode("default")
        cycles = runner.cycles - before[0]
        waits = [str(warning.message) for warning in seen if "synchroniz" in str(warning.message)]
        told[name] = {
            "cycles": cycles,
            "waits_per_cycle": len(waits) / max(1, cycles),
            "captures": runner.captures + decoder.captures - before[1],
            "device_allocations": torch.cuda.memory_stats()["num_device_alloc"] - before[2],
        }
    for cycle in runner.captured:
        told[str(cycle.kind)] = {"ms": timed(cycle.whole.replay)}
    engine.close()
    return told


def same(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Captured cycles against the other path in invariant mode, and rows alone against rows together: tokens equal."""
    engine = open_engine(asked, invariant=True)
    batch, texts, told = engine._batch, prompts(ROWS), dict[str, Any]()
    runner = batch.captured.runner
    for warm in (0.0, 1.0):
        coupled = {"eagle 3, coupled": Speculation(depth=3, verify="coupled")}
        for name, how in {**WAYS, **coupled}.items():
            if warm == 0 and how.verify:
                continue
            batch.captured.runner = runner
            together, alone = (
                [tokens for i in range(0, ROWS, size) for tokens in answer_seeded(engine, texts, i, size, how, warm)]
                for size in (ROWS, 1)
            )
            batch.captured.runner = None
            other = answer_seeded(engine, texts, 0, ROWS, how, warm)
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
    engine, texts, told = open_engine(asked), prompts(ROWS), dict[str, Any]()
    runner = engine._batch.captured.runner
    for warm, ways in ((0.0, TREES), (0.8, CHOSEN)):
        for name, how in ways.items():
            engine._batch.captured.runner = runner
            whole = answer_seeded(engine, texts, 0, 1, how, warm)
            engine._batch.captured.runner = None
            told[f"{name}, T {warm}"] = {"captured = not": _equal(whole, answer_seeded(engine, texts, 0, 1, how, warm))}
    engine.close()
    return told


def answer_seeded(
    engine: NativeEngine, texts: list[str], start: int, size: int, how: Speculation, warm: float
) -> list[list[int]]:
    options = GenerationOptions(max_tokens=LONG, speculation=how, ignore_eos=True)
    tickets = [
        engine.submit(texts[n], Sampling(temperature=warm, seed=n), options)[0] for n in range(start, start + size)
    ]
    return [ticket.result().token_ids for ticket in tickets]


def _equal(first: list[list[int]], second: list[list[int]]) -> float:
    """The share of tokens that agree up to the first that does not."""
    pairs = list(zip(first, second, strict=True))
    same = sum(next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x)) for x, y in pairs)
    return same / sum(len(x) for x, _ in pairs)


def energy(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Joules per token over windows of seconds, and what the board draws when it does nothing."""
    meter, reason = Meter.open("cuda")
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
