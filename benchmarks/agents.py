"""Agentic and repetitive workloads: tau and speed of `suffix` beside `ngram` and plain decoding.

    python benchmarks/agents.py [--model smollm2-135m] [--device auto] [--dtype auto] [--tokens 128] [--turns 4]
        [--drafters ngram suffix] [--depth N] [--repeats 3] [--engines native llamacpp vllm] [--out FILE.json]
        [--vllm-python PYTHON] [--vllm-dtype float32]

Two workloads, greedy: `edits` is a conversation in which one Python file is edited again and again, `json` asks for
similar JSON objects in separate requests. Plain decoding of the first engine runs first. Its answers are the
conversation for all, so that every drafter sees the same prompts. In every repeat the ways of decoding take turns, and
each repeat is a tenant of its own: `suffix` remembers the outputs of its own repeat only. Other engines run one after
the other, each with its own plain decoding; those that are not installed are left out with a message. `--depth` fixes
the drafted tokens per cycle; without it the policy decides. The exit code is 1 if an answer of the native engine
differs from plain decoding by more than ties.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.measure.provenance import commit, hardware, load_average, versions
from slipstream.bench.statistics import estimate, ratio
from slipstream.core.sampling import Sampling
from slipstream.engines import open_engine
from slipstream.engines.base import Completion, Engine, GenerationOptions, Speculation

GREEDY = Sampling(temperature=0)
FILE = '''class Stack:
    """A stack of items, the last one first."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def peek(self):
        return self.items[-1]
'''
EDITS = (
    "add a method `size` that returns the number of items",
    "rename `peek` to `top`",
    "add a method `clear` that removes all items",
    "add type hints to all methods",
    "add a method `is_empty`",
    "add docstrings to all methods",
)
PEOPLE = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Donald Knuth")
Chat = list[dict[str, str]]


def next_prompt(workload: str, turn: int, answers: Sequence[str]) -> Chat:
    """The prompt of a turn, after the answers of the turns before it."""
    if workload == "json":
        fields = '{"name": …, "born": …, "country": …, "known_for": […], "quote": …}'
        return [{"role": "user", "content": f"Describe {PEOPLE[turn % 6]} as JSON like {fields}. Write the JSON only."}]
    chat: Chat = []
    for n in range(turn + 1):
        file = f"Here is a file:\n```python\n{FILE}```\n" if n == 0 else ""
        chat.append({"role": "user", "content": f"{file}Please {EDITS[n % 6]}, and write the whole file again."})
        if n < turn:
            chat.append({"role": "assistant", "content": answers[n]})
    return chat


class Runs:
    """The answers and times of one way of decoding."""

    def __init__(self) -> None:
        self.speeds: list[float] = []
        self.emitted = self.cycles = 0

    def add(self, completions: Sequence[Completion], seconds: float) -> None:
        self.speeds.append(sum(len(done.token_ids) for done in completions) / seconds)
        self.emitted += sum(done.stats.emitted for done in completions)
        self.cycles += sum(done.stats.cycles for done in completions)


def run(
    engine: Engine, prompts: Sequence[Chat], options: GenerationOptions, runs: Runs | None = None
) -> list[Completion]:
    began = time.perf_counter()
    completions = [engine.submit(prompt, GREEDY, options)[0].result() for prompt in prompts]
    if runs is not None:
        runs.add(completions, time.perf_counter() - began)
    return completions


def make_prompts(engine: Engine, workload: str, turns: int, tokens: int) -> list[Chat]:
    prompts: list[Chat] = []
    answers: list[str] = []
    plain = GenerationOptions(tokens, speculation=Speculation(off=True))
    for turn in range(turns):
        prompts.append(next_prompt(workload, turn, answers))
        answers += [done.text for done in run(engine, prompts[-1:], plain)]
    return prompts


def differs(engine: Engine, prompts: Sequence[Chat], done: Sequence[Completion], plain: Sequence[Completion]) -> bool:
    """Whether an answer differs from plain decoding by more than ties."""
    for prompt, ours, theirs in zip(prompts, done, plain, strict=True):
        same = engine.agreements(prompt, GREEDY, GenerationOptions(len(ours.token_ids)), [ours], [theirs])
        if same is not None and same[0].real is not None:
            return True
    return False


def measure_native(engine: Engine, workload: str, prompts: Sequence[Chat], given: argparse.Namespace) -> list[Any]:
    ways = {"plain": Speculation(off=True)}
    ways |= {name: Speculation(drafter=name, depth=given.depth) for name in given.drafters}
    runs, wrong = {name: Runs() for name in ways}, set[str]()
    for repeat in range(given.repeats):
        answers = {}
        for name in ways if repeat % 2 else reversed(ways):
            options = GenerationOptions(given.tokens, speculation=ways[name], tenant=f"repeat {repeat}")
            answers[name] = run(engine, prompts, options, runs[name])
        wrong |= {name for name in given.drafters if differs(engine, prompts, answers[name], answers["plain"])}
    return [line("native", workload, name, runs[name], runs["plain"], name not in wrong) for name in ways]


def measure_peer(name: str, workload: str, prompts: Sequence[Chat], given: argparse.Namespace) -> list[Any]:
    lines, base = [], Runs()
    for drafter in ("none", *given.drafters):
        try:
            options, dtype = ({"python": given.vllm_python}, given.vllm_dtype) if name == "vllm" else ({}, "auto")
            options = {key: value for key, value in options.items() if value}
            with open_engine(
                name, given.model, drafter, options=options, depth=given.depth, device=given.device, dtype=dtype
            ) as engine:
                runs = base if drafter == "none" else Runs()
                for _ in range(given.repeats):
                    run(engine, prompts, GenerationOptions(given.tokens), runs)
        except ValueError as error:
            print(f"{name}, {drafter}: left out, {error}", flush=True)
            if drafter == "none":
                break
            continue
        lines.append(line(name, workload, "plain" if drafter == "none" else drafter, runs, base, None))
    return lines


def line(engine: str, workload: str, name: str, runs: Runs, plain: Runs, same: bool | None) -> dict[str, Any]:
    return {
        "engine": engine,
        "workload": workload,
        "drafter": name,
        "tau": round(runs.emitted / max(1, runs.cycles), 3),
        "tokens_per_second": round(estimate(runs.speeds).value, 2),
        "ratio_to_plain": ratio(runs.speeds, plain.speeds).data(),
        "same_output": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--drafters", nargs="+", default=["ngram", "suffix"])
    parser.add_argument("--depth", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=["native"])
    parser.add_argument("--vllm-python", help="the interpreter of vLLM's environment; default: this one")
    parser.add_argument("--vllm-dtype", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    for workload in ("edits", "json"):
        with open_engine("native", given.model, "none", device=given.device, dtype=given.dtype) as engine:
            label = engine.label
            prompts = make_prompts(engine, workload, given.turns, given.tokens)
            new = measure_native(engine, workload, prompts, given) if "native" in given.engines else []
        for name in given.engines:
            new += [] if name == "native" else measure_peer(name, workload, prompts, given)
        for entry in new:
            value, low, high = entry["ratio_to_plain"]
            interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
            same = {None: "", True: ", same output", False: ", OUTPUT DIFFERS"}[entry["same_output"]]
            print(
                f"{entry['engine']:12} {workload:6} {entry['drafter']:10} tau {entry['tau']:5.2f}, "
                f"{entry['tokens_per_second']:8.1f} t/s, ratio {value:.2f}{interval}{same}",
                flush=True,
            )
        results += new
    if given.out:
        origin = {"command": " ".join(sys.argv), "commit": commit(), "load": load_average(), "model": label}
        origin |= {"hardware": hardware(), "versions": versions()}
        given.out.write_text(json.dumps({"origin": origin, "results": results}, indent=1) + "\n")
    sys.exit(any(entry["same_output"] is False for entry in results))


if __name__ == "__main__":
    main()
