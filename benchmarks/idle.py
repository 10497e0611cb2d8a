"""What a drafter costs while its drafts do not pay: an engine with an idle drafter beside one without a drafter.

    python benchmarks/idle.py [--drafters eagle draft_model ngram] [--requests 8] [--tokens 160] [--first 1]
                              [--threads N] [--real] [--bar 0.99] [--out FILE]

Both engines share the weights of one model. Each decodes the same prompt greedily, and they take turns, whichever has
emitted less, so that whatever disturbs the machine disturbs both alike. Every drafted token is replaced by a wrong one:
drafting then pays on no machine, and both engines emit one token a cycle. `--real` leaves the drafts as they are.

The table gives plain / idle time of a request, 1 for no overhead, as mean and 95 % interval over the requests
(Student's t on logarithms), by processor time of all threads and by the clock. The first requests (`--first`), in which
the policy learns what drafts cost, are reported apart. With `--threads 1` processor time is robust against other load.
The exit code is 1 where a mean by processor time after the first requests misses the bar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from engine import TEXTS, interval, machine, ratios
from rich.console import Console
from rich.table import Table

import slipstream as ss
from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.noise import Noise
from slipstream.core.rules import rules
from slipstream.core.types import Budget, Draft, Request, Row, Scores, Verdict
from slipstream.drafters.build import build_drafter
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.build import build_target
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target
from slipstream.plan.policy.policies import Adaptive

CLOCKS = {"processor": time.process_time, "clock": time.perf_counter}


class Wrong(Drafter):
    """Drafts what another drafter drafts with every token replaced by its neighbour in the vocabulary."""

    def __init__(self, drafter: Drafter, vocab: int) -> None:
        self._drafter, self._vocab, self.needs = drafter, vocab, drafter.needs

    def open(self, rows: Sequence[Row]) -> None:
        self._drafter.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self._drafter.close(rows)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        draft = self._drafter.propose(rows, budget, noise)
        token = (draft.token + 1) % self._vocab
        return Draft(draft.tree, token, OneHot(token, self._vocab), draft.siblings)

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        self._drafter.observe(rows, verdict, scores)


@dataclass
class Side:
    """One engine without its thread: cycles are run one at a time and timed."""

    batch: Batch
    course: DecodingPlan
    seconds: dict[str, float] = field(default_factory=dict)  # of the request, by clock

    @staticmethod
    def of(model: TorchModel, drafter: Drafter | None) -> Side:
        limits, rule, none = ss.Limits(retained=0), rules.get("greedy")(), NoDrafter(model.vocab)
        model.retain(limits.retained)
        drafters = {"none": none, "idle": drafter or none}
        batch = Batch(model, drafters.__getitem__, lambda _: rule, Adaptive(clock=time.perf_counter), limits)
        return Side(batch, DecodingPlan("idle", "greedy", None) if drafter else DecodingPlan("none", "greedy", 0))

    def begin(self, prompt: list[int], tokens: int) -> Job:
        job = Job(Request(prompt, ss.Sampling(temperature=0), tokens), self.course)
        self.batch.add(job)
        self.seconds = dict.fromkeys(CLOCKS, 0.0)
        return job

    def step(self) -> None:
        before = {name: clock() for name, clock in CLOCKS.items()}
        self.batch.step()
        for name, clock in CLOCKS.items():
            self.seconds[name] += clock() - before[name]


def measure(target: Target, name: str, args: Any) -> dict[str, Any]:
    drafter, own = build_drafter(name, target), target.model
    drafter = drafter if args.real else Wrong(drafter, own.vocab)
    other = TorchModel(own.model, anatomy=own.anatomy, invariant=own.invariant)
    plain, idle = Side.of(other, None), Side.of(own, drafter)
    prompts = [target.text.encode(text) for text in TEXTS["prose"]]
    found: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
    drafted = []
    for n in range(args.first + args.requests):
        sides = [(side, side.begin(prompts[n % len(prompts)], args.tokens)) for side in (plain, idle)]
        with torch.inference_mode():
            while not all(job.done for _, job in sides):
                sides.reverse()
                min((pair for pair in sides if not pair[1].done), key=lambda pair: pair[1].row.emitted)[0].step()
        drafted.append(sum(sum(job.stats.drafted) for _, job in sides))
        for clock, each in found.items():
            each.append(plain.seconds[clock] / idle.seconds[clock])
    assert not idle.batch.failures, idle.batch.failures
    parts = {"first": slice(args.first), "then": slice(args.first, None)}
    return {"drafter": name, "drafted": drafted, "requests": found} | {
        part: {clock: ratios(each[which], [1.0] * len(each[which])) for clock, each in found.items()}
        for part, which in parts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafters", nargs="+", default=["eagle", "draft_model", "ngram"])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--bar", type=float, default=0.99)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    records = []
    for name in args.drafters:
        target = build_target(args.model)  # anew: what one drafter declared stays declared
        if args.threads:
            torch.set_num_threads(args.threads)
        records.append(measure(target, name, args))
        print(json.dumps(records[-1]), flush=True)
    show(target, records, args)
    if args.out:
        save(args.out, target, records, args)
    sys.exit(any(record["then"]["processor"]["mean"] < args.bar for record in records))


def show(target: Target, records: list[dict[str, Any]], args: Any) -> None:
    table = Table(title=f"{target.label}, greedy, {args.tokens} tokens a request, {machine()}: plain / idle time")
    for name in ("drafter", "drafted tokens", "first, processor", "then, processor", "then, clock"):
        table.add_column(name)
    for record in records:
        first, then = record["first"]["processor"], record["then"]
        cells = f"{first['median']:.3f}", interval(then["processor"]), interval(then["clock"])
        table.add_row(record["drafter"], " ".join(map(str, record["drafted"])), *cells)
    Console(width=150).print(table)


def save(path: Path, target: Target, records: list[dict[str, Any]], args: Any) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {
        "model": target.label,
        "sha256": target.files.sha256,
        "machine": machine(),
        "commit": commit,
        "command": f"python benchmarks/idle.py {' '.join(sys.argv[1:])}",
        "records": records,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
