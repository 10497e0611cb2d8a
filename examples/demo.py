"""Plain decoding against speculation on the default model, in one table: speed, tau, and whether the tokens agree.

python examples/demo.py [--tokens N]
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

import slipstream as ss
from slipstream.engines.native.compare import draft_speed
from slipstream.engines.native.engine import NativeEngine

TEXT = (
    "The harbour woke before the town did. Nets were mended, ropes were coiled, and the first boats went out while "
    "the lamps along the quay were still lit. By noon the fish market was loud; by evening it was quiet again."
)
PROMPTS = {
    "copying": f"Repeat the following text word for word, and then repeat it again:\n\n{TEXT}",
    "code": "Write a Python class Stack with push, pop, peek and is_empty, then show how each method is called.",
    "chat": "Why is the sky blue? Explain it to a child.",
}
REPEATS = 3


def measure(engine: NativeEngine, prompt: str, tokens: int, off: bool) -> tuple[float, ss.Completion]:
    """Tokens per second of decoding, reading the prompt left out."""
    start = time.perf_counter()
    first, early = 0.0, 0
    (ticket,) = engine.submit(
        prompt, ss.Sampling(temperature=0), ss.Wish(max_tokens=tokens, speculation=ss.Speculation(off=off))
    )
    for chunk in ticket:
        if not first:
            first, early = time.perf_counter(), len(chunk.tokens)
    done = ticket.result()
    return (len(done.tokens) - early) / (time.perf_counter() - (first or start)), done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    tokens = parser.parse_args().tokens
    engines = {
        "n-gram": NativeEngine(drafter="ngram", limits=ss.Limits(retained=0)),
        "eagle head": NativeEngine(drafter="eagle", limits=ss.Limits(retained=0)),
        "draft model": NativeEngine(drafter="draft_model", limits=ss.Limits(retained=0)),
    }
    plain_engine = engines["n-gram"]
    console = Console()
    table = Table(title=f"{plain_engine.target.label}, greedy, {tokens} tokens, median of {REPEATS} interleaved runs")
    for column in ("text", "decoding", "tokens/s", "x plain", "tau", "same tokens"):
        table.add_column(column, justify="left" if column in ("text", "decoding") else "right")
    work = [(name, repeat) for name in PROMPTS for repeat in range(REPEATS)]
    speeds: dict[tuple[str, str], list[float]] = {}
    results: dict[tuple[str, str], ss.Completion] = {}
    for engine in engines.values():
        measure(engine, "Hello.", 4, off=False)
    for name, _ in track(work, description="decoding", console=console, transient=True):
        for label, engine, off in [("plain", plain_engine, True), *((k, e, False) for k, e in engines.items())]:
            speed, done = measure(engine, PROMPTS[name], tokens, off)
            speeds.setdefault((name, label), []).append(speed)
            results[name, label] = done
    for name in PROMPTS:
        plain = statistics.median(speeds[name, "plain"])
        for label in ("plain", *engines):
            speed, done = statistics.median(speeds[name, label]), results[name, label]
            same = "" if label == "plain" else "yes" if done.tokens == results[name, "plain"].tokens else "NO"
            table.add_row(name, label, f"{speed:.1f}", f"{speed / plain:.2f}", f"{done.tau:.2f}", same)
        table.add_section()
    alone = draft_speed(engines["draft model"], results["chat", "plain"])
    table.add_row("", "the draft model alone", f"{alone:.1f}", "", "", "")
    console.print(table)
    console.print(
        "tau: tokens emitted per pass of the target. Depth is chosen every cycle; zero is one of the choices."
    )
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
