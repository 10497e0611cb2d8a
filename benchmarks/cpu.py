"""The bars on a CPU: the default model, greedy, beside transformers and llama.cpp, one interleaved run.

    python benchmarks/cpu.py [--model M] [--dtype auto] [--tokens 96] [--prompts 2] [--repeats 3] [--ways …] [--parts …]
                             [--out FILE]

Five workloads, every prompt read anew, each way in turn, the order turned round every repeat, the first one warming up.
A ratio is of two ways' tokens per second, prompts included, in the same repeat: its median with a bootstrap interval of
95 %. Beside speeds: what a pass over eight tokens costs against one, what eight rows bring against one, how long until
a first answer from the command line, and what whole-number products do to the model's laws, against float32 with the
same weights and with weights and activations in bfloat16. Exits with 1 where a bar is missed. `--dtype` is that of our
target: with `a8`, activations of eight bits, it is another one than by default, which every output names.

With `--pair TARGET.gguf DRAFT.gguf` these two and nothing else are measured (`cpu_pair.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import cpu_pair
from rich.console import Console
from rich.progress import track
from rich.table import Table

from slipstream.bench.measure.agreement import compare_laws, laws
from slipstream.bench.measure.provenance import commit, hardware, versions
from slipstream.bench.statistics import Estimate, estimate, pooled, ratio
from slipstream.bench.workloads import load_workloads
from slipstream.core.sampling import Sampling
from slipstream.engines import open_engine
from slipstream.engines.base import Engine, Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.scheduler import Limits

WORKLOADS = "code,chat,maths,summary,rewriting"
WAYS: dict[str, tuple[str, str, Speculation | None]] = {
    "transformers": ("transformers", "none", None),
    "llama.cpp": ("llamacpp", "none", None),
    "llama.cpp n-gram": ("llamacpp", "ngram", None),
    "plain": ("native", "none", None),
    "n-gram": ("native", "ngram", None),
    "eagle": ("native", "eagle", None),
    "eagle 2": ("native", "eagle", Speculation(depth=2)),
    "eagle 3": ("native", "eagle", Speculation(depth=3)),
    "eagle 4": ("native", "eagle", Speculation(depth=4)),
    "eagle 5": ("native", "eagle", Speculation(depth=5)),
    "tree 4": ("native", "eagle", Speculation(shape=4)),
    "tree 7": ("native", "eagle", Speculation(shape=7)),
    "tree 8": ("native", "eagle", Speculation(shape=8)),
    "tree 16": ("native", "eagle", Speculation(shape=16)),
}
OURS = tuple(way for way, (engine, drafter, _) in WAYS.items() if engine == "native" and drafter != "none")
CHOSEN = ("n-gram", "eagle")  # whose policy decides every step whether to draft
PARTS = ("speeds", "passes", "start", "quality")
THEIRS = ("llama.cpp", "llama.cpp n-gram")
SIZES = (1, 2, 4, 8, 16)  # tokens of a pass


class Bar(NamedTuple):
    what: str
    found: Estimate
    bound: float
    above: bool = True

    @property
    def met(self) -> bool:
        return self.found.value >= self.bound if self.above else self.found.value <= self.bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pair", nargs=2, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.pair:
        sys.exit(not pair(args))
    args.label = build_target(args.model, args.dtype).label
    print(f"ours: {args.label}", flush=True)
    speeds = race(args) if "speeds" in args.parts else {}
    bars = judge(speeds) if speeds else []
    passes: dict[int, float] = {}
    if args.out:
        save(args, speeds, bars, [])  # what is there should the rest fail
    if "passes" in args.parts:
        bars += [eight_tokens(args, passes), eight_rows(args)]
    if "start" in args.parts:
        bars.append(first_answer(args))
    quality = compare(args) if "quality" in args.parts else []
    show(speeds, bars, quality, args)
    if args.out:
        save(args, speeds, bars, quality, passes)
    sys.exit(not all(bar.met for bar in bars))


def pair(args) -> bool:
    """Whether a draft model is a gain, and both together are faster than llama.cpp."""
    args.model, args.label, passes = args.pair[0], args.pair[0], {}

    def keep(speeds, found) -> None:
        passes.update(found)
        if args.out:
            save(args, speeds, [], [], passes)

    speeds = cpu_pair.race(args, keep)
    cells = list(speeds.values())
    args.ways = list(cells[0])
    drafting = [way for way in cpu_pair.OURS if way.startswith(("policy", "depth"))]
    best = [max((c[way] for way in drafting), key=statistics.median) for c in cells]
    ours = [max((c[way] for way in cpu_pair.OURS), key=statistics.median) for c in cells]
    plain, chosen = ([c[way] for c in cells] for way in ("plain", "policy"))
    bars = [
        Bar("best with the draft model / plain", pooled(list(zip(best, plain, strict=True))), 1.0),
        Bar(
            "policy / plain, worst workload", min(map(ratio, chosen, plain), key=lambda estimate: estimate.value), 0.97
        ),
    ]
    if rivals := [way for way in cpu_pair.THEIRS if way in args.ways]:
        theirs = [max((c[way] for way in rivals), key=statistics.median) for c in cells]
        bars.append(Bar("best of ours / best of llama.cpp", pooled(list(zip(ours, theirs, strict=True))), 1.0))
    show(speeds, bars, [], args)
    if args.out:
        save(args, speeds, bars, [], passes)
    return all(bar.met for bar in bars)


def opened(args, engine: str, drafter: str) -> Engine:
    """Every call reads its own prompt, as the others' do."""
    own = {"limits": Limits(retained=0), "dtype": args.dtype} if engine == "native" else {}
    return open_engine(engine, args.model, drafter, **own)


def race(args) -> dict[str, dict[str, list[float]]]:
    """Tokens per second by workload and way, one number a repeat."""
    speeds: dict[str, dict[str, list[float]]] = {}
    engines = {kind: opened(args, *kind) for kind in dict.fromkeys(WAYS[way][:2] for way in args.ways)}
    for workload in load_workloads(",".join(f"{name}:{args.prompts}" for name in WORKLOADS.split(","))):
        cells = speeds[workload.name] = {way: [] for way in args.ways}
        for repeat in track(range(args.repeats + 1), description=workload.name, transient=True):
            order = args.ways if repeat % 2 else args.ways[::-1]
            for way in order:
                *kind, asked = WAYS[way]
                engine, more = engines[kind[0], kind[1]], {"speculation": asked} if asked else {}
                started, count = time.perf_counter(), 0
                for item in workload.items:
                    done = engine.generate(item.turns[0], Sampling(temperature=0), max_tokens=args.tokens, **more)
                    count += len(done[0].token_ids)
                if repeat:
                    cells[way].append(count / (time.perf_counter() - started))
    for engine in engines.values():
        engine.close()
    return speeds


def judge(speeds: dict[str, dict[str, list[float]]]) -> list[Bar]:
    cells = list(speeds.values())
    bars = []
    if "transformers" in cells[0]:
        bars.append(Bar("plain / transformers", pooled([(c["plain"], c["transformers"]) for c in cells]), 2.5))
    ours = [way for way in OURS if way in cells[0]]
    best = [max((c[way] for way in (*ours, "plain")), key=statistics.median) for c in cells]
    if "transformers" in cells[0]:
        theirs = [c["transformers"] for c in cells]
        bars.append(Bar("best of ours / transformers", pooled(list(zip(best, theirs, strict=True))), 6.0))
    rivals = [way for way in THEIRS if way in cells[0]]
    if rivals:
        theirs = [max((c[way] for way in rivals), key=statistics.median) for c in cells]
        each = list(map(ratio, best, theirs))
        bars.append(Bar("best of ours / best of llama.cpp", pooled(list(zip(best, theirs, strict=True))), 1.3))
        bars.append(Bar("the same, worst workload", min(each, key=lambda estimate: estimate.value), 1.0))
    for way in (way for way in CHOSEN if way in ours):
        each = [ratio(c[way], c["plain"]) for c in cells]
        bars.append(Bar(f"{way} / plain, worst workload", min(each, key=lambda estimate: estimate.value), 0.97))
    trees, chains = ([way for way in ours if way.startswith(kind)] for kind in ("tree", "eagle "))
    if trees and chains:
        first, second = ([max((c[w] for w in ways), key=statistics.median) for c in cells] for ways in (trees, chains))
        bars.append(Bar("best tree / best chain", pooled(list(zip(first, second, strict=True))), 1.0))
    return bars


def eight_tokens(args, passes: dict[int, float]) -> Bar:
    """A pass over eight tokens behind a context of 200, against a pass over one; `passes` are told what each takes."""
    found = cpu_pair.passes(build_target(args.model, args.dtype).model, SIZES, 24)
    passes.update({tokens: 1e3 * statistics.median(seconds[4:]) for tokens, seconds in found.items()})
    print("ms a pass:", ", ".join(f"{tokens} tokens {ms:.1f}" for tokens, ms in passes.items()), flush=True)
    return Bar("8-token pass / 1-token pass", ratio(found[8][4:], found[1][4:]), 1.15, above=False)


def eight_rows(args) -> Bar:
    engine = opened(args, "native", "none")
    prompts = [item.turns[0] for item in load_workloads("chat:8")[0].items]
    alone, eight = [], []
    for repeat in range(args.repeats + 1):
        for batch, speeds in ((prompts[:1], alone), (prompts, eight)):
            started = time.perf_counter()
            done = engine.generate(batch, Sampling(temperature=0), max_tokens=args.tokens, ignore_eos=True)
            if repeat:
                speeds.append(sum(len(each.token_ids) for each in done) / (time.perf_counter() - started))
    engine.close()
    return Bar("8 rows / 1 row, tokens per second", ratio(eight, alone), 3.0)


def first_answer(args) -> Bar:
    command = [sys.executable, "-m", "slipstream", "generate", "Hello", "-m", args.model, "--max-tokens", "1"]
    command += ["--dtype", args.dtype]
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    return Bar("seconds to a first answer", estimate(seconds[1:]), 5.0, above=False)


def compare(args) -> list[dict[str, float | str]]:
    """Laws on real text against float32: agreement of the likeliest token, KL, perplexity."""
    text = "\n\n".join(item.turns[0] for item in load_workloads("summary")[0].items)
    records, truth, ids = [], None, None
    for dtype in dict.fromkeys(("float32", "auto", args.dtype, "bfloat16")):
        target = build_target(
            args.model, dtype=dtype, invariant=True
        )  # in bfloat16 the kernels are faster than emulation
        ids = target.text.encode(text, raw=True)[:1024] if ids is None else ids
        probs = laws(target.model, ids)
        truth = probs if truth is None else truth
        records.append({"arithmetic": target.label, **compare_laws(probs, truth, ids)})
    return records


def show(speeds, bars: list[Bar], quality, args) -> None:
    console = Console(width=140)
    table = Table(title=f"{args.label}, greedy, {args.tokens} tokens, tokens per second with prompts (medians)")
    for name in ("workload", *args.ways):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for workload, cells in speeds.items():
        table.add_row(workload, *(f"{statistics.median(cells[way]):.1f}" for way in args.ways))
    console.print(table)
    table = Table(title="bars")
    for name in ("what", "found", "95 %", "bar", ""):
        table.add_column(name)
    for bar in bars:
        found, sign = bar.found, ">=" if bar.above else "<="
        span = "one repeat" if found.interval is None else "{:.2f} to {:.2f}".format(*found.interval)
        mark = "[green]met" if bar.met else "[red]missed"
        table.add_row(bar.what, f"{found.value:.2f}", span, f"{sign} {bar.bound:g}", mark)
    console.print(table)
    if not quality:
        return
    table = Table(title="laws against float32 with the same weights, on real text")
    for name in ("arithmetic", "agreement", "KL", "perplexity"):
        table.add_column(name)
    for one in quality:
        table.add_row(one["arithmetic"], f"{one['agreement']:.4f}", f"{one['kl']:.2e}", f"{one['perplexity']:.3f}")
    console.print(table)


def save(args, speeds, bars: list[Bar], quality, passes=None) -> None:
    report = {
        "command": f"python benchmarks/cpu.py {' '.join(sys.argv[1:])}",
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        "target": args.label,
        "tokens_per_second": speeds,
        "bars": [
            {"what": bar.what, "found": bar.found.data(), "bound": bar.bound, "above": bar.above, "met": bar.met}
            for bar in bars
        ],
        "quality": quality,
        **({"milliseconds_a_pass": passes} if passes else {}),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
