"""What invariant mode costs: target passes with the mode on and off, same weights, one interleaved run.

    python benchmarks/invariant.py [--model NAME] [--contexts 200 1000] [--tokens 1 4 8] [--batches 1 4] [--repeats 9]
                                   [--cpu-time] [--out FILE]

One pass over so many tokens a row (the last of which are a draft) behind so much context. Both sides share the packed
linears; what differs is attention and its masks. The ratio on / off of each pair of neighbouring passes is taken, and
its median printed with the interval that holds the middle half. The mode is on by default where it costs under 5 %.
--cpu-time counts the processor seconds of one thread instead of the clock: what a busy machine can still measure.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.engines.native.build import build_target
from slipstream.models.run.torch_model import TorchModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.cpu_time:
        torch.set_num_threads(1)
    target = build_target(args.model, invariant=True)
    on = target.model
    sides = {"on": on, "off": TorchModel(on.model, anatomy=on.anatomy, retained=0)}
    on.retain(0)
    records = []
    work = [(context, batch) for context in args.contexts for batch in args.batches]
    for context, batch in track(work, description="measuring", transient=True):
        records += cell(sides, context, batch, args)
    show(records, f"{target.label}, {machine()}")
    if args.out:
        save(args, target.label, target.files.sha256, records)


def cell(sides: dict[str, TorchModel], context: int, batch: int, args) -> list[dict]:
    """One context and batch: every number of tokens, the two sides by turns."""
    rng, vocab = random.Random(context + batch), sides["on"].vocab
    texts = [[rng.randrange(vocab) for _ in range(context)] for _ in range(batch)]
    rows = {side: [Row(Request(text)) for text in texts] for side in sides}
    for side, model in sides.items():
        model.open(rows[side])
        while any(model.prefill(rows[side], 512)):
            pass
    records = []
    for tokens in args.tokens:
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for repeat in range(args.repeats + 1):
            for side in ("on", "off") if repeat % 2 else ("off", "on"):
                seconds[side].append(
                    timed(sides[side], rows[side], tokens, time.thread_time if args.cpu_time else time.perf_counter)
                )
        records.append(record(context, batch, tokens, {side: times[1:] for side, times in seconds.items()}))
    for side, model in sides.items():
        model.close(rows[side])
    return records


def timed(model: TorchModel, rows: list[Row], tokens: int, clock: Callable[[], float]) -> float:
    """Seconds of one pass over the last committed token of every row and a draft after it."""
    token = torch.arange(len(rows) * (tokens - 1)) % model.vocab
    draft = Draft(Tree.chains([tokens - 1] * len(rows)), token, OneHot(token, model.vocab))
    started = clock()
    model.score(rows, draft)
    return clock() - started


def record(context: int, batch: int, tokens: int, seconds: dict[str, list[float]]) -> dict:
    ratios = sorted(a / b for a, b in zip(seconds["on"], seconds["off"], strict=True))
    low, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.25, 0.75))
    return {
        "context": context,
        "batch": batch,
        "tokens": tokens,
        "milliseconds": {side: 1e3 * statistics.median(times) for side, times in seconds.items()},
        "least_milliseconds": {side: 1e3 * min(times) for side, times in seconds.items()},
        "ratio": statistics.median(ratios),
        "middle_half": [low, high],
        "ratio_of_least": min(seconds["on"]) / min(seconds["off"]),
    }


def show(records: list[dict], title: str) -> None:
    table = Table(title=title)
    for name in ("context", "rows", "tokens a row", "off, ms", "on, ms", "on / off", "middle half", "of the least"):
        table.add_column(name, justify="right")
    for record in records:
        low, high = record["middle_half"]
        table.add_row(
            *(str(record[key]) for key in ("context", "batch", "tokens")),
            *(f"{record['milliseconds'][side]:.1f}" for side in ("off", "on")),
            f"{record['ratio']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{record['ratio_of_least']:.3f}",
        )
    Console(width=120).print(table)
    worst = max(records, key=lambda record: record["ratio"])
    where = f"context {worst['context']}, {worst['batch']} rows, {worst['tokens']} tokens"
    print(f"the dearest: {worst['ratio'] - 1:+.1%} ({where})")


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def save(args, label: str, sha256: str | None, records: list[dict]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    lists = {name: " ".join(map(str, getattr(args, name))) for name in ("contexts", "tokens", "batches")}
    command = " ".join(f"--{name} {values}" for name, values in lists.items())
    report = {
        "model": label,
        "sha256": sha256,
        "machine": machine(),
        "commit": commit,
        "command": f"python benchmarks/invariant.py --model {args.model} {command} --repeats {args.repeats}"
        + (" --cpu-time" if args.cpu_time else ""),
        "records": records,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
