"""The native engine beside transformers' own `generate`: same weights, same prompts, same dtype, one interleaved run.

    python benchmarks/engine.py [--model NAME] [--batches 1 4 8 16] [--tokens 48] [--repeats 3] [--out FILE]

Greedy. Tokens per second of whole calls, prompts included, for every batch size: transformers plain, native plain
(drafting off), native with n-gram drafts at the depth the policy chooses. Medians over interleaved repeats, with the
smallest and largest ratio seen. `hopeless` is text that gives prompt lookup nothing to find: there the bar is at most
3 % below plain decoding. Every row says whether the tokens of the three agree.
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
from transformers import AutoModelForCausalLM

import slipstream as ss
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.models import catalog

COPY = "Repeat this list three times, exactly as it is: apples, pears, plums, cherries, quinces, medlars, figs, dates."
TEXTS = {
    "copying": [f"{COPY} Begin with number {i}." for i in range(16)],
    "hopeless": [
        f"Invent {i + 2} strange words that nobody has ever used and say what each could mean." for i in range(16)
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = catalog.resolve(args.model)
    theirs = catalog.load_model(found, "auto")
    target = build_target(args.model)
    engine = NativeEngine(target, drafter="ngram", limits=ss.Limits(rows=max(args.batches), retained=0))
    records = []
    work = [(text, batch) for text in TEXTS for batch in args.batches]
    for text, batch in track(work, description="measuring", transient=True):
        prompts = [target.text.encode(prompt) for prompt in TEXTS[text][:batch]]
        records.append(measure(engine, theirs, text, prompts, args))
    show(engine, records, args)
    if args.out:
        save(args.out, engine, records, args)


def measure(engine: NativeEngine, theirs: AutoModelForCausalLM, text: str, prompts: list[list[int]], args) -> dict:
    """One cell: three ways, interleaved."""
    ways = {
        "transformers": lambda: hf(theirs, prompts, engine.target.text.ends, args.tokens),
        "plain": lambda: native(engine, prompts, args.tokens, off=True),
        "n-gram": lambda: native(engine, prompts, args.tokens, off=False),
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    tokens = {}
    for repeat in range(args.repeats + 1):
        for way, run in ways.items():
            started = time.perf_counter()
            tokens[way], tau = run()
            if repeat:  # the first round warms up
                count = sum(map(len, tokens[way]))
                speeds[way].append(count / (time.perf_counter() - started))
    same = [a == b == c for a, b, c in zip(*tokens.values(), strict=True)]
    return {
        "text": text,
        "batch": len(prompts),
        "tokens_per_second": {way: statistics.median(values) for way, values in speeds.items()},
        "against_transformers": ratios(speeds["plain"], speeds["transformers"]),
        "speculation_against_plain": ratios(speeds["n-gram"], speeds["plain"]),
        "speculation_against_transformers": ratios(speeds["n-gram"], speeds["transformers"]),
        "tau": tau,
        "same_tokens": f"{sum(same)} of {len(same)}",
    }


def ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {"median": statistics.median(each), "least": each[0], "most": each[-1]}


def hf(model, prompts: list[list[int]], ends: frozenset[int], tokens: int) -> tuple[list[list[int]], float]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=sorted(ends)
        )
    texts = []
    for line in out[:, width:].tolist():
        end = next((i + 1 for i, token in enumerate(line) if token in ends), len(line))
        texts.append(line[:end])
    return texts, 1.0


def native(engine: NativeEngine, prompts: list[list[int]], tokens: int, off: bool) -> tuple[list[list[int]], float]:
    speculation = ss.Speculation(off=off)
    done = engine.generate(prompts, ss.Sampling(temperature=0), max_tokens=tokens, speculation=speculation)
    cycles = sum(one.tally.cycles for one in done)
    return [one.tokens for one in done], sum(len(one.tokens) for one in done) / cycles


def show(engine: NativeEngine, records: list[dict], args) -> None:
    table = Table(title=f"{engine.target.label}, greedy, {args.tokens} tokens a row, {machine()}")
    for name in (
        "text",
        "batch",
        "transformers",
        "plain",
        "n-gram",
        "plain / hf",
        "n-gram / plain",
        "tau",
        "same tokens",
    ):
        table.add_column(name, justify="left" if name == "text" else "right")
    for record in records:
        speed = record["tokens_per_second"]
        pair = [record["against_transformers"], record["speculation_against_plain"]]
        table.add_row(
            record["text"],
            str(record["batch"]),
            *(f"{speed[way]:.1f}" for way in ("transformers", "plain", "n-gram")),
            *(f"{r['median']:.2f} ({r['least']:.2f} to {r['most']:.2f})" for r in pair),
            f"{record['tau']:.2f}",
            record["same_tokens"],
        )
    Console(width=150).print(table)


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def save(path: Path, engine: NativeEngine, records: list[dict], args) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {
        "model": engine.target.label,
        "sha256": engine.target.found.sha256,
        "machine": machine(),
        "commit": commit,
        "command": f"python benchmarks/engine.py --model {args.model} --batches {' '.join(map(str, args.batches))} "
        f"--tokens {args.tokens} --repeats {args.repeats}",
        "records": records,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
