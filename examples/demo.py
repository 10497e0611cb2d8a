"""Speculation at work on the default model: a text in colours, then three ways of decoding side by side.

python examples/demo.py [--tokens N] [--seconds N]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

import slipstream as ss
from slipstream.bench.statistics import FASTER, SLOWER, Estimate, estimate, ratio, verdict
from slipstream.cli.generate.completion_report import why_undrafted
from slipstream.cli.generate.pairs import why_not_measured
from slipstream.cli.generation import GenerationTask, Run, run_task
from slipstream.cli.output.token_view import TokenView, legend
from slipstream.models.target import Target
from slipstream.plan.policy.drafting_cost import DraftingCost

PROMPTS = {"code": "Write a Python function that reverses a string.", "chat": "Why is the sky blue?"}
DEPTH, LEAST, MOST = 4, 5, 12  # drafted tokens a cycle where the depth is fixed; rounds of measurements
PLAIN, FIXED, POLICY = "plain", f"always {DEPTH}", "policy"
WAYS = {PLAIN: ss.Speculation(off=True), FIXED: ss.Speculation(depth=DEPTH), POLICY: ss.Speculation()}
NEXT = (
    f'slipstream generate "{PROMPTS["code"]}" -d eagle --compare',
    "slipstream chat -d eagle",
)


@dataclass
class Cell:
    """Runs of one prompt decoded in one way."""

    last: Run | None = None
    speeds: list[float] = field(default_factory=list)
    why_undrafted: str | None = None

    def add(self, run: Run, cost: DraftingCost | None) -> None:
        self.last = run
        self.speeds.append(run.times.speed)
        self.why_undrafted = why_undrafted(run, "eagle", None, cost)

    @property
    def tokens(self) -> list[int]:
        assert self.last is not None
        return self.last.samples[0].token_ids


def open_engine(model: str | Target) -> ss.Engine:
    return ss.Engine(model, drafter="eagle", limits=ss.Limits(retained=0))


def task(prompt: str, way: str, tokens: int) -> GenerationTask:
    options = ss.GenerationOptions(max_tokens=tokens, speculation=WAYS[way])
    return GenerationTask(prompt, ss.Sampling(temperature=0), options)


def show_text(engine: ss.Engine, console: Console, tokens: int) -> None:
    """One text as it comes, each token in the colour of its origin."""
    console.print(Text(f"\n{PROMPTS['code']}\n", "bold"))
    view = TokenView(console)
    run = run_task(engine, task(PROMPTS["code"], FIXED, tokens), view.show)
    view.end()
    console.print("\n", legend(), sep="")
    stats = run.stats
    console.print(
        f"{stats.emitted} tokens in {stats.cycles} passes of the target: tau {stats.tau:.2f}. "
        f"Plain decoding needs {stats.emitted} passes.\n"
    )


def measure(engine: ss.Engine, console: Console, tokens: int, seconds: float) -> dict[str, dict[str, Cell]]:
    """All ways of decoding take turns on every prompt, so that what slows the machine for a while slows all of them.
    The policy has an engine for each prompt, on the same weights: what it learns of one text is not applied to the
    other."""
    cells = {name: {way: Cell() for way in WAYS} for name in PROMPTS}
    chosen = {name: open_engine(engine.target) for name in PROMPTS}
    started, rounds = time.perf_counter(), 0
    with console.status("") as status:
        while rounds < LEAST or (rounds < MOST and time.perf_counter() - started < seconds):
            status.update(f"measuring: round {rounds + 1} of up to {MOST}")
            for name, prompt in PROMPTS.items():
                for way in list(WAYS) if rounds % 2 == 0 else reversed(WAYS):
                    used = chosen[name] if way == POLICY else engine
                    cells[name][way].add(run_task(used, task(prompt, way, tokens)), used.drafting_cost)
            rounds += 1
    for used in chosen.values():
        used.close()
    return cells


def table(cells: dict[str, dict[str, Cell]], title: str) -> Table:
    result = Table(title=title, title_justify="left")
    for column in ("decoding", "tok/s", "/ plain (95 %)", "", "tau", "passes", "same"):
        result.add_column(column, justify="left" if column in ("decoding", "") else "right", no_wrap=True)
    for name, ways in cells.items():
        for way, cell in ways.items():
            assert cell.last is not None
            stats, same = cell.last.stats, "yes" if cell.tokens == ways[PLAIN].tokens else "NO"
            figures = f"{stats.tau:.2f}", f"{stats.cycles}/{stats.emitted}"
            against = ("", "") if way == PLAIN else compared(ratio(cell.speeds, ways[PLAIN].speeds), cell.last)
            speed = f"{estimate(cell.speeds).value:.0f}"
            result.add_row(f"{name}, {way}", speed, *against, *figures, "" if way == PLAIN else same)
        result.add_section()
    return result


def compared(ratio: Estimate, run: Run) -> tuple[str, Text]:
    """A ratio with its interval, and what it may be called: noise is neither a gain nor a loss."""
    if why_not_measured(run):
        return "", Text("none")
    judged = verdict(ratio)
    low, high = ratio.interval or (ratio.value, ratio.value)
    colour = {FASTER: "green", SLOWER: "red"}.get(judged)
    return f"{ratio.value:.2f} ({low:.2f}-{high:.2f})", Text(judged, colour) if colour else Text("unclear")


def explain(console: Console, cells: dict[str, dict[str, Cell]]) -> None:
    """What the policy chose, in words."""
    for name, ways in cells.items():
        cell = ways[POLICY]
        assert cell.last is not None
        console.print(f"{name}: {cell.why_undrafted or f'the policy had {cell.last.drafted} tokens drafted'}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0, help="for measuring")
    asked = parser.parse_args()
    console = Console(highlight=False)
    with open_engine("smollm2-135m") as engine:
        show_text(engine, console, asked.tokens)
        cells = measure(engine, console, asked.tokens, asked.seconds)
        rounds = len(cells["code"][PLAIN].speeds)
        console.print(table(cells, f"{engine.label}\ngreedy, eagle head, {rounds} interleaved runs of each"))
        console.print(
            f"always {DEPTH}: {DEPTH} tokens are drafted in every cycle. policy: the default, which chooses how many. "
            "/ plain: speed against plain decoding, with its 95 % interval. "
            "tau: tokens per pass of the target. passes: passes of the target / tokens. "
            "same: the tokens equal those of plain decoding. "
            "unclear: the interval contains 1. none: next to nothing was drafted, so there is no difference to measure."
        )
        explain(console, cells)
    console.print("\nTry next:")
    for command in NEXT:
        console.print(f"  {command}", style="bold", soft_wrap=True)


if __name__ == "__main__":
    main()
