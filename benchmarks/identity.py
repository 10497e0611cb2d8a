"""The same tokens, whatever is done beside: 100 prompts with speculation on and off, alone and in a batch of eight.

    python benchmarks/identity.py [--model NAME] [--prompts 100] [--tokens 128] [--minutes M] [--state FILE]
                                  [--out FILE]

Invariant mode, greedy and coupled (temperature 0.8, one seed per prompt), eight cells in all. With speculation, n-gram
drafts of depth 1 to 4, another one for every prompt, so that rows of different depths share their passes; in the batch,
requests join as others leave. Every output is kept in the state file as it comes, so a run that was interrupted, or
stopped by --minutes, goes on where it was. What must be equal is the outputs of one prompt and rule in all cells that
have run; the exit code is 1 where they are not.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import slipstream as ss
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine

TASKS = [
    "Explain {} to a curious ten-year-old in a few sentences.",
    "Write a short story of three sentences that has to do with {}.",
    "List five facts about {}, one per line, each with a number in front.",
    "Write a Python function that has something to do with {}, with a docstring.",
    "Write a polite e-mail to a colleague who forgot about {}.",
    "Make up a riddle whose answer is {}, and then give the answer.",
    "What are the advantages and the drawbacks of {}? Answer as a table in Markdown.",
    "Repeat this sentence four times, word for word: nobody in our street knew anything about {}.",
    "Write a JSON object with the keys name, use and year that describes {}.",
    "Continue this text: When she opened the old box, she found a note about {}. It said:",
]
SUBJECTS = [
    "tides",
    "a lighthouse keeper's logbook",
    "bread that does not rise",
    "prime numbers",
    "the night train to the coast",
    "beekeeping in a city",
    "a chess clock",
    "rain gauges",
    "moss on a stone wall",
    "the metric system",
]
PROMPTS = [task.format(subject) for subject in SUBJECTS for task in TASKS]
CELLS = [(rule, batch, drafted) for batch in (8, 1) for rule in ("greedy", "coupled") for drafted in (False, True)]
BLOCK = 10  # prompts that go through all cells before the next ones begin, so that half a run compares half the prompts
Done = dict[tuple[str, int, bool], dict[int, list[int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then, to go on another time")
    parser.add_argument("--state", type=Path, default=Path("build/identity.jsonl"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not 1 <= args.prompts <= len(PROMPTS):
        raise SystemExit(f"--prompts is {args.prompts}; there are 1 to {len(PROMPTS)}")
    target = build_target(args.model, invariant=True)
    key = {"model": target.label, "sha256": target.files.sha256, "tokens": args.tokens, "machine": machine()}
    done = read(args.state, key)
    deadline = time.monotonic() + 60 * args.minutes
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar, args.state.open("a") as state:
        tasks = {c: bar.add_task(name(c), total=args.prompts, completed=len(done[c])) for c in CELLS}
        for first in range(0, args.prompts, BLOCK):
            for cell in CELLS:
                left = [i for i in range(first, min(first + BLOCK, args.prompts)) if i not in done[cell]]
                for prompt, tokens in run(target, cell, args, left, deadline):
                    done[cell][prompt] = tokens
                    state.write(json.dumps({"cell": cell, "prompt": prompt, "tokens": tokens}) + "\n")
                    state.flush()
                    bar.update(tasks[cell], completed=len(done[cell]))
    report = summary(done, args.prompts)
    show(report, target.label)
    if args.out:
        save(args, key, report)
    sys.exit(any(rule["different"] for rule in report["rules"].values()))


def run(target, cell, args, left: list[int], deadline: float) -> Iterator[tuple[int, list[int]]]:
    """The outputs of some prompts in one cell, as they come."""
    rule, batch, drafted = cell
    if not left or time.monotonic() > deadline:
        return
    with NativeEngine(target, "ngram", "coupled", limits=ss.Limits(rows=batch)) as engine:
        tickets = []
        for i in left:
            how = ss.Sampling(temperature=0) if rule == "greedy" else ss.Sampling(0.8, seed=1000 + i)
            speculation = ss.Speculation(depth=1 + i % 4) if drafted else ss.Speculation(off=True)
            options = ss.GenerationOptions(max_tokens=args.tokens, ignore_eos=True, speculation=speculation)
            tickets += [(i, ticket) for ticket in engine.submit(PROMPTS[i], how, options)]
        for i, ticket in tickets:
            if time.monotonic() > deadline:
                break
            completion = ticket.result()
            if completion.error:
                raise RuntimeError(f"prompt {i} failed: {completion.error}")
            yield i, completion.token_ids


def read(path: Path, key: dict) -> Done:
    """What earlier runs left, if they ran the same thing."""
    done: Done = defaultdict(dict)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    if lines and lines[0] != key:
        raise SystemExit(f"{path} holds outputs of {lines[0]}, not of {key}; name another file with --state")
    if not lines:
        path.write_text(json.dumps(key) + "\n")
    for line in lines[1:]:
        rule, batch, drafted = line["cell"]
        done[rule, batch, drafted][line["prompt"]] = line["tokens"]
    return done


def summary(done: Done, prompts: int) -> dict:
    """For each rule, how many prompts came out the same in all cells that ran, and where others part."""
    rules = {}
    for rule in ("greedy", "coupled"):
        cells = [cell for cell in CELLS if cell[0] == rule]
        compared, different = 0, []
        for i in range(prompts):
            outputs = {cell: done[cell][i] for cell in cells if i in done[cell]}
            compared += len(outputs) > 1
            if len({tuple(tokens) for tokens in outputs.values()}) > 1:
                different.append({"prompt": i, "parts_at": parts(list(outputs.values()))})
        share = 100 * (compared - len(different)) / compared if compared else None
        rules[rule] = {"prompts_compared": compared, "percent_equal": share, "different": different}
    ran = {name(cell): {"outputs": len(done[cell]), "tokens": sum(map(len, done[cell].values()))} for cell in CELLS}
    return {"rules": rules, "cells": ran}


def parts(outputs: list[list[int]]) -> int:
    longest = max(map(len, outputs))
    return next((i for i in range(longest) if len({tuple(tokens[i : i + 1]) for tokens in outputs}) > 1), longest)


def name(cell: tuple[str, int, bool]) -> str:
    rule, batch, drafted = cell
    return f"{rule}, batch {batch}, {'n-gram drafts' if drafted else 'plain'}"


def show(report: dict, label: str) -> None:
    table = Table(title=label)
    for column in ("cell", "outputs", "tokens"):
        table.add_column(column, justify="left" if column == "cell" else "right")
    for cell, ran in report["cells"].items():
        table.add_row(cell, str(ran["outputs"]), str(ran["tokens"]))
    Console(width=100).print(table)
    for rule, counts in report["rules"].items():
        share = "nothing to compare" if counts["percent_equal"] is None else f"{counts['percent_equal']:.1f} % equal"
        print(f"{rule}: {counts['prompts_compared']} prompts compared, {share}")
        for difference in counts["different"]:
            print(f"  prompt {difference['prompt']} parts at token {difference['parts_at']}")


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def save(args, key: dict, report: dict) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = f"python benchmarks/identity.py --model {args.model} --prompts {args.prompts} --tokens {args.tokens}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(key | {"commit": commit, "command": command} | report, indent=1) + "\n")


if __name__ == "__main__":
    main()
