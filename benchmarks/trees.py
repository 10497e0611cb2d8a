"""Chains, trees and the policy's own choice: tokens per target pass and per second, by shape and number of nodes.

    python benchmarks/trees.py [--model NAME] [--drafter eagle] [--verify no_replace] [--temperatures 0 1]
                               [--workloads chat:2,code:2,maths:2,summary:2,translation:2] [--ways …] [--batch 1]
                               [--tokens 64] [--repeats 3] [--out FILE]

One engine, prompts of five workloads, the same ones for every way of drafting, one interleaved run whose order turns
round every time; the first round warms up and teaches the policy. `chain N` drafts N tokens, `tree N` grows up to N
nodes where the drafter thinks best, `policy` is left to itself (chain, tree or nothing, every cycle). At temperature
0 the rule is greedy; above it, chains are verified by block and trees by --verify, since block takes chains only, so
`policy` is asked for both. Ratios are of neighbouring calls of one repeat: to plain decoding, and to the best chain.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import slipstream as ss
from slipstream.bench.workloads import Workload, load_workloads
from slipstream.engines.native.engine import NativeEngine

WAYS = ("plain", "chain 3", "chain 5", "tree 8", "tree 16", "tree 24", "policy, chains", "policy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--verify", default="no_replace")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--workloads", default="chat:2,code:2,maths:2,summary:2,translation:2")
    parser.add_argument("--ways", nargs="+", type=way, metavar="WAY", default=list(WAYS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    engine = NativeEngine(args.model, args.drafter, limits=ss.Limits(rows=args.batch, retained=0))
    records = []
    cells = [(work, heat) for work in load_workloads(args.workloads) for heat in args.temperatures]
    for work, heat in track(cells, description="measuring", transient=True):
        records.append(measure(engine, work, heat, args))
        print(json.dumps(records[-1]), flush=True)
    show(engine, records, args)
    if args.out:
        save(args.out, engine, records, args)
    engine.close()


def way(text: str) -> str:
    """One of the ways to draft, of any size."""
    kind, _, size = text.partition(" ")
    if text not in WAYS and not (kind in ("chain", "tree") and size.isdecimal() and int(size)):
        raise argparse.ArgumentTypeError(f"{text!r} is not plain, policy, 'policy, chains', 'chain N' or 'tree N'")
    return text


def speculation(way: str, verify: str) -> ss.Speculation:
    """What is asked of the engine; at temperature 0 its rule is the greedy one whatever is named here."""
    kind, _, size = way.partition(" ")
    if kind == "plain":
        return ss.Speculation(off=True, verify="block")
    if kind == "chain":
        return ss.Speculation(verify="block", depth=int(size))
    if kind == "tree":
        return ss.Speculation(verify=verify, shape=int(size))
    return ss.Speculation(verify="block" if way == "policy, chains" else verify)


def ways_at(heat: float, ways: list[str]) -> list[str]:
    """Greedy rows may branch whenever the policy is free, so there is no policy for chains alone."""
    return [way for way in ways if heat or way != "policy, chains"]


def measure(engine: NativeEngine, work: Workload, heat: float, args: argparse.Namespace) -> dict:
    prompts = [item.turns[0] for item in work.items]
    ways = ways_at(heat, args.ways)
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    taus: dict[str, list[float]] = {way: [] for way in ways}
    drafted: dict[str, list[float]] = {way: [] for way in ways}
    texts: dict[str, list[list[int]]] = {}
    for repeat in range(args.repeats + 1):
        for way in ways if repeat % 2 else ways[::-1]:
            spent, done = 0.0, []
            for start in range(0, len(prompts), args.batch):
                hows = [ss.Sampling(temperature=heat, seed=repeat * 1000 + start + i) for i in range(args.batch)]
                group = prompts[start : start + args.batch]
                began = time.perf_counter()
                done += engine.generate(
                    group, hows[: len(group)], max_tokens=args.tokens, speculation=speculation(way, args.verify)
                )
                spent += time.perf_counter() - began
            texts[way] = [completion.token_ids for completion in done]
            if repeat:  # the first round warms up
                cycles, emitted = (
                    sum(completion.stats.cycles for completion in done),
                    sum(len(completion.token_ids) for completion in done),
                )
                speeds[way].append(emitted / spent)
                taus[way].append(emitted / cycles)
                drafted[way].append(sum(sum(completion.stats.drafted) for completion in done) / cycles)
    return {
        "workload": work.name,
        "digest": work.digest,
        "temperature": heat,
        "ways": {way: summary(way, speeds, taus, drafted) for way in ways},
        "same_tokens": same(texts) if heat == 0 else None,
    }


def summary(way: str, speeds: dict, taus: dict, drafted: dict) -> dict:
    chains = [other for other in speeds if other.startswith("chain")]
    best = max(chains, key=lambda other: statistics.median(speeds[other])) if chains else None
    ways = {
        "tokens_per_second": statistics.median(speeds[way]),
        "tau": statistics.mean(taus[way]),
        "drafted_per_pass": statistics.mean(drafted[way]),
    }
    for name, other in (("against_plain", "plain"), ("against_best_chain", best)):
        if other in speeds:
            ways[name] = statistics.median(a / b for a, b in zip(speeds[way], speeds[other], strict=True))
    return ways


def same(texts: dict[str, list[list[int]]]) -> str:
    alike = [len(set(map(tuple, lines))) == 1 for lines in zip(*texts.values(), strict=True)]
    return f"{sum(alike)} of {len(alike)}"


def show(engine: NativeEngine, records: list[dict], args: argparse.Namespace) -> None:
    table = Table(title=f"{engine.label}, {args.drafter}, {args.tokens} tokens a row, batch {args.batch}, {machine()}")
    for name in ("workload", "T", "way", "tokens/s", "tau", "drafted a pass", "of plain", "of the best chain"):
        table.add_column(name, justify="left" if name in ("workload", "way") else "right")
    for record in records:
        for way, figures in record["ways"].items():
            ratios = (figures.get(name) for name in ("against_plain", "against_best_chain"))
            table.add_row(
                record["workload"],
                f"{record['temperature']:g}",
                way,
                f"{figures['tokens_per_second']:.1f}",
                f"{figures['tau']:.2f}",
                f"{figures['drafted_per_pass']:.1f}",
                *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
            )
        table.add_section()
    Console(width=120).print(table)


def machine() -> str:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return f"{where}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def save(path: Path, engine: NativeEngine, records: list[dict], args: argparse.Namespace) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    ways = " ".join(f'"{way}"' for way in args.ways)
    report = {
        "model": engine.label,
        "sha256": engine.target.files.sha256,
        "machine": machine(),
        "commit": commit,
        "command": f"python benchmarks/trees.py --model {args.model} --drafter {args.drafter} --verify {args.verify} "
        f"--temperatures {' '.join(f'{heat:g}' for heat in args.temperatures)} --workloads {args.workloads} "
        f"--ways {ways} --batch {args.batch} --tokens {args.tokens} --repeats {args.repeats}",
        "records": records,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
