"""The native engine beside transformers' own `generate`: same weights, same prompts, same dtype, one interleaved run.

    python benchmarks/engine.py [--model NAME] [--batches 1 4 8 16] [--tokens 48] [--repeats 3] [--texts …] [--ways …]
                                [--cpu-time] [--out FILE]

Greedy. Tokens per second of whole calls, prompts included, for every batch size: transformers plain, native plain
(drafting off), native with n-gram drafts at the depth the policy chooses. Ratios are of neighbouring calls of one
repeat: their median, the smallest and largest, and a 95 % interval of their geometric mean (Student's t on logarithms).
`hopeless` is text that gives prompt lookup next to nothing to find: there the bar is at most 3 % below plain decoding.
Every row says whether the tokens of all ways agree.

--cpu-time measures the processor seconds of one thread instead of the clock, the engine's policy too: what can still be
measured while others use the machine. A processor is then bound by arithmetic earlier than with all its threads.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM

import slipstream as ss
from slipstream.engines.native import batch as native_batch
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.sources import catalog

COPY = "Repeat this list three times, exactly as it is: apples, pears, plums, cherries, quinces, medlars, figs, dates."
SUBJECTS = (
    "rust, the sea at night, a tax office, mushrooms, glass, a school play, ferries, dust, a broken clock, "
    "the price of salt, owls, an empty stadium, ink, winter tyres, a tunnel, soup"
)
TEXTS = {
    "copying": [f"{COPY} Begin with number {i}." for i in range(16)],
    "hopeless": [
        f"Invent {i + 2} strange words that nobody has ever used and say what each could mean." for i in range(16)
    ],
    "prose": [f"Write a paragraph about {subject}, and do not use any word twice." for subject in SUBJECTS.split(", ")],
}
WAYS = "transformers", "plain", "n-gram"
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)  # 95 %, two-sided


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=["copying", "hopeless", "prose"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.cpu_time:
        torch.set_num_threads(1)
        native_batch.time = SimpleNamespace(perf_counter=time.thread_time)  # type: ignore[assignment]
    files = catalog.resolve(args.model)
    theirs = catalog.load_model(files, "auto") if "transformers" in args.ways else None
    target = build_target(args.model)
    engine = NativeEngine(target, drafter="ngram", limits=ss.Limits(rows=max(args.batches), retained=0))
    records = []
    work = [(text, batch) for text in args.texts for batch in args.batches]
    for text, batch in track(work, description="measuring", transient=True):
        prompts = [target.text.encode(prompt) for prompt in TEXTS[text][:batch]]
        records.append(measure(engine, theirs, text, prompts, args))
        print(json.dumps(records[-1]), flush=True)
    show(engine, records, args)
    if args.out:
        save(args.out, engine, records, args)


def measure(engine: NativeEngine, theirs: AutoModelForCausalLM, text: str, prompts: list[list[int]], args) -> dict:
    """One cell: all ways, interleaved, their order turned round every time."""
    every = {
        "transformers": lambda: hf(theirs, prompts, engine.target.text.ends, args.tokens),
        "plain": lambda: native(engine, prompts, args.tokens, off=True),
        "n-gram": lambda: native(engine, prompts, args.tokens, off=False),
    }
    clock = time.process_time if args.cpu_time else time.perf_counter
    ways = [way for way in WAYS if way in args.ways]
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    tokens, taus = {}, []
    for repeat in range(args.repeats + 1):
        for way in ways if repeat % 2 else ways[::-1]:
            started = clock()
            tokens[way], tau = every[way]()
            if repeat:  # the first round warms up
                speeds[way].append(sum(map(len, tokens[way])) / (clock() - started))
                taus += [tau] if way == "n-gram" else []
    same = [len(set(map(tuple, lines))) == 1 for lines in zip(*tokens.values(), strict=True)]
    pairs = {
        "against_transformers": ("plain", "transformers"),
        "speculation_against_plain": ("n-gram", "plain"),
        "speculation_against_transformers": ("n-gram", "transformers"),
    }
    return {
        "text": text,
        "batch": len(prompts),
        "tokens_per_second": {way: statistics.median(values) for way, values in speeds.items()},
        **{name: ratios(speeds[a], speeds[b]) for name, (a, b) in pairs.items() if a in speeds and b in speeds},
        "tau": statistics.median(taus) if taus else None,
        "same_tokens": f"{sum(same)} of {len(same)}",
    }


def ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    summary = {"median": statistics.median(each), "least": each[0], "most": each[-1]}
    if len(each) < 2:
        return summary
    logs = [math.log(ratio) for ratio in each]
    middle, count = statistics.mean(logs), len(logs)
    wide = STUDENT[min(count - 2, len(STUDENT) - 1)] * statistics.stdev(logs) / math.sqrt(count)
    return summary | {"mean": math.exp(middle), "low": math.exp(middle - wide), "high": math.exp(middle + wide)}


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
    cycles = sum(completion.stats.cycles for completion in done)
    return [completion.token_ids for completion in done], sum(len(completion.token_ids) for completion in done) / cycles


def show(engine: NativeEngine, records: list[dict], args) -> None:
    measure = "CPU time of one thread" if args.cpu_time else "by the clock"
    table = Table(title=f"{engine.target.label}, greedy, {args.tokens} tokens a row, {machine()}, {measure}")
    names = {"against_transformers": "plain / hf", "speculation_against_plain": "n-gram / plain"}
    names = {key: title for key, title in names.items() if key in records[0]}
    for name in ("text", "batch", *args.ways, *names.values(), "tau", "same tokens"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for record in records:
        table.add_row(
            record["text"],
            str(record["batch"]),
            *(f"{record['tokens_per_second'][way]:.1f}" for way in args.ways),
            *(interval(record[key]) for key in names),
            f"{record['tau'] or 1:.2f}",
            record["same_tokens"],
        )
    Console(width=150).print(table)


def interval(summary: dict[str, float]) -> str:
    if "mean" not in summary:
        return f"{summary['median']:.3f}"
    return f"{summary['median']:.3f}, mean {summary['mean']:.3f} ({summary['low']:.3f} to {summary['high']:.3f})"


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def save(path: Path, engine: NativeEngine, records: list[dict], args) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {
        "model": engine.target.label,
        "sha256": engine.target.files.sha256,
        "machine": machine(),
        "commit": commit,
        "command": f"python benchmarks/engine.py --model {args.model} --batches {' '.join(map(str, args.batches))} "
        f"--tokens {args.tokens} --repeats {args.repeats} --texts {' '.join(args.texts)} --ways {' '.join(args.ways)}"
        + (" --cpu-time" if args.cpu_time else ""),
        "records": records,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
