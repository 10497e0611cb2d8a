"""One call of `generate` from the opened engine to the last line: text, statistics, comparison, tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.cli.generate.comparison import compare, compare_apart
from slipstream.cli.generate.completion_report import completion_report, why_undrafted
from slipstream.cli.generate.statistics_view import show_logprobs, show_statistics
from slipstream.cli.generate.tree_view import Onlooker, drawing
from slipstream.cli.generation import GenerationTask, Run, run_task
from slipstream.cli.options import shared
from slipstream.cli.output.show import console, print_json
from slipstream.cli.output.token_view import TokenView, legend
from slipstream.engines import open_engine
from slipstream.engines.native.scheduler import Limits

if TYPE_CHECKING:
    from slipstream.engines.base import Engine


@dataclass(frozen=True)
class Opening:
    """Which engine is opened, and how."""

    engine: str
    model: str
    drafter: str
    verify: str | None
    depth: int | None
    options: Mapping[str, str]
    loading: Mapping[str, Any]
    tree: str | None = None
    show_tree: bool = False
    onlooker: Onlooker = field(default_factory=Onlooker)

    def open(self) -> Engine:
        native: dict[str, Any] = {}
        if self.engine == "native":
            native["limits"] = Limits(retained=0)  # one prompt: nothing to keep for another
            native |= {"shape": self.tree} if self.tree else {}
            native |= {"watch": self.onlooker} if self.show_tree else {}
        elif self.tree or self.show_tree:
            raise ValueError(f"--tree and --show-tree need the native engine; {self.engine} drafts as it does")
        return open_engine(
            self.engine, self.model, self.drafter, self.verify, self.depth, self.options, **self.loading, **native
        )

    def open_plain(self) -> Engine:
        """A peer once more, without a drafter."""
        return open_engine(self.engine, self.model, "none", options=shared(self.options), **self.loading)


def generated(opening: Opening, engine: Engine, task: GenerationTask, comparing: bool, as_json: bool) -> dict[str, Any]:
    """Generate, show and compare; the report. After Ctrl-C it says so and nothing is compared any more."""
    run = _shown(engine, task, as_json)
    report = completion_report(run, engine, opening.drafter)
    report["drafting_note"] = why_undrafted(run, opening.drafter, opening.depth, engine.drafting_cost)
    report["interrupted"] = run.interrupted
    if comparing and not run.interrupted:
        try:
            report |= _compared(opening, engine, task, run)
        except KeyboardInterrupt:
            report["interrupted"] = True
    if opening.show_tree:
        report["tree"] = opening.onlooker.nodes
    if as_json:
        print_json(report)
    else:
        _show_report(report, opening, engine)
    return report


def _shown(engine: Engine, task: GenerationTask, quiet: bool) -> Run:
    """The run whose text the user sees."""
    if quiet:
        return run_task(engine, task)
    view = TokenView(console())

    def between(number: int) -> None:
        view.end()
        console(stderr=True).print(f"sample {number + 1} of {task.options.n}", style="dim")

    run = run_task(engine, task, view.show, between)
    view.end()
    return run


def _compared(opening: Opening, engine: Engine, task: GenerationTask, run: Run) -> dict[str, Any]:
    with console(stderr=True).status("comparing with plain decoding") as status:

        def told(done: int, least: int) -> None:
            status.update(f"comparing with plain decoding: pair {done + 1} of at least {least}; Ctrl-C ends it")

        if engine.capabilities.switch:
            return compare(engine, task, run, told)
        return compare_apart(engine, opening.open_plain, task, run, told)


def _show_report(report: dict[str, Any], opening: Opening, engine: Engine) -> None:
    notes = console(stderr=True)
    if opening.onlooker.nodes:
        notes.print(drawing(opening.onlooker, lambda token: engine.text.decode([token])))
    show_logprobs(report)
    if console().is_terminal and report["drafted"]:
        notes.print(legend())
    show_statistics(report)
    if report["interrupted"]:
        notes.print("ended by Ctrl-C", style="bold")
