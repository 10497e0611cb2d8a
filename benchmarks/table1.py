"""Table 1 of speculative sampling (arXiv 2302.01318) made again for a pair of models: quality with and without exact
speculation, mean time per token, and speed-up.

    python benchmarks/table1.py run -m TARGET -d DRAFT --xsum FILE --humaneval FILE --out DIR
    python benchmarks/table1.py grade --xsum FILE --humaneval FILE --out DIR

- XSum, greedy and nucleus (top-p 0.8): ROUGE-2 of one summary per article, by the package rouge-score.
- HumanEval, T = 0.8: pass@1 and pass@10 of ten samples per problem.
- Texts for quality are generated in batches. Times per token are measured at batch 1, prompts included, plain decoding
  and speculation in turn on the same prompts.

`run` needs no network and no rouge-score. It writes `texts.jsonl` and `times.json`. `grade` reads them, on any machine,
and writes `table1.json`. The XSum file has one {"prompt": …, "reference": …} per line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.measure.provenance import commit, provenance
from slipstream.bench.tasks.problems import load_task
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Completion, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits

WAYS = {"plain": Speculation(off=True), "speculation": Speculation()}


@dataclass(frozen=True)
class PromptSet:
    """One line of the table: prompts, and how they are decoded."""

    name: str
    ids: Sequence[str]
    prompts: Sequence[str]
    sampling: Sampling
    max_tokens: int
    samples: int = 1
    raw: bool = False
    stop: tuple[str, ...] = ()

    def generate(self, engine: NativeEngine, prompts: Sequence[str], way: str, samples: int) -> list[Completion]:
        return engine.generate(
            list(prompts),
            self.sampling,
            max_tokens=self.max_tokens,
            n=samples,
            raw=self.raw,
            stop=self.stop,
            speculation=WAYS[way],
        )


def prompt_sets(args: argparse.Namespace, instruct: bool) -> list[PromptSet]:
    articles = xsum(args.xsum)[: args.articles]
    ids, prompts = [entry["id"] for entry in articles], [entry["prompt"] for entry in articles]
    problems = load_task(args.humaneval).problems[: args.problems]
    texts = [problem.text(instruct) for problem in problems]
    _, raw, stop = texts[0]
    return [
        PromptSet("XSum, greedy", ids, prompts, Sampling(0), args.summary_tokens),
        PromptSet("XSum, nucleus 0.8", ids, prompts, Sampling(1.0, top_p=0.8), args.summary_tokens),
        PromptSet(
            "HumanEval, T = 0.8",
            [problem.id for problem in problems],
            [text for text, _, _ in texts],
            Sampling(0.8),
            args.code_tokens,
            args.samples,
            raw,
            stop,
        ),
    ]


def xsum(path: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [{"id": f"xsum/{number}", **entry} for number, entry in enumerate(entries)]


def run(args: argparse.Namespace) -> None:
    """Generate the texts and measure the times. Every part is written as soon as it is there."""
    args.out.mkdir(parents=True, exist_ok=True)
    limits = Limits(rows=args.batch, retained=0)
    with NativeEngine(args.model, args.draft, depth=args.depth, limits=limits, dtype=args.dtype) as engine:
        sets = prompt_sets(args, engine.text.instruct)
        about = provenance(engine.target.files, ["python", *sys.argv]) | {"commit": commit(), "draft": args.draft}
        times: dict[str, Any] = {"about": about, "batch": args.batch, "depth": args.depth, "sets": {}}
        for entry in sets:
            times["sets"][entry.name] = timed(engine, entry, args.timed)
            (args.out / "times.json").write_text(json.dumps(times, indent=1) + "\n")
            print(entry.name, times["sets"][entry.name], flush=True)
        with (args.out / "texts.jsonl").open("w", encoding="utf-8") as file:
            for line in texts(engine, sets):
                file.write(json.dumps(line) + "\n")
                file.flush()


def timed(engine: NativeEngine, prompts: PromptSet, count: int) -> dict[str, Any]:
    """Seconds and tokens of each way at batch 1, in turn on the same prompts. All of them run once before: the first
    passes of a size compile kernels and capture graphs."""
    seconds, tokens, emitted, cycles = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0), 0, 0
    chosen = list(prompts.prompts[:count])
    for number, prompt in enumerate([*chosen, *chosen]):
        for way in WAYS if number % 2 else reversed(WAYS):
            began = time.perf_counter()
            (done,) = prompts.generate(engine, [prompt], way, 1)
            if number >= len(chosen):
                seconds[way] += time.perf_counter() - began
                tokens[way] += len(done.token_ids)
                if way == "speculation":
                    emitted, cycles = emitted + done.stats.emitted, cycles + done.stats.cycles
    return {"prompts": len(chosen), "seconds": seconds, "tokens": tokens, "tau": emitted / max(1, cycles)}


def texts(engine: NativeEngine, sets: Sequence[PromptSet]) -> Iterator[dict[str, Any]]:
    """The texts of every set and way, all prompts in one batch, with the time that the batch took."""
    for entry in sets:
        for way in WAYS:
            began = time.perf_counter()
            done = entry.generate(engine, entry.prompts, way, entry.samples)
            seconds, count = time.perf_counter() - began, sum(len(completion.token_ids) for completion in done)
            print(f"{entry.name}, {way}: {count} tokens in {seconds:.1f} s", flush=True)
            grouped = [done[start : start + entry.samples] for start in range(0, len(done), entry.samples)]
            yield {
                "set": entry.name,
                "way": way,
                "seconds": seconds,
                "tokens": count,
                "answers": {
                    name: [completion.text for completion in own] for name, own in zip(entry.ids, grouped, strict=True)
                },
            }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("step", choices=("run", "grade"))
    add("-m", "--model", default="smollm2-135m")
    add("-d", "--draft", default="ngram", help="a draft model, or another drafter")
    add("--depth", type=int, help="drafted tokens per cycle; default: the policy decides")
    add("--dtype", default="auto")
    add("--xsum", type=Path, required=True, help='lines of {"prompt", "reference"}')
    add("--humaneval", required=True, help="a .jsonl file of problems")
    add("--articles", type=int, default=200)
    add("--problems", type=int, default=164)
    add("--samples", type=int, default=10, help="of each problem of HumanEval")
    add("--summary-tokens", type=int, default=128)
    add("--code-tokens", type=int, default=320)
    add("--timed", type=int, default=30, help="prompts of each set whose times are measured at batch 1")
    add("--batch", type=int, default=128)
    add("--out", type=Path, required=True, help="a folder for texts, times and the table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    if args.step == "run":
        run(args)
        return 0
    from table1_grade import grade_folder, shown

    table = grade_folder(args.out, xsum(args.xsum), load_task(args.humaneval))
    (args.out / "table1.json").write_text(json.dumps(table, indent=1) + "\n")
    print(shown(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
