"""One run of `generate` after the engine is open: text, statistics, comparison and tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.cli.flag_groups import ProfileFlags
from slipstream.cli.generate.comparison import compare, compare_apart
from slipstream.cli.generate.completion_report import completion_report, why_undrafted
from slipstream.cli.generate.statistics_view import show_logprobs, show_statistics
from slipstream.cli.generate.tree_view import BestDraft, drawing
from slipstream.cli.generation import GenerationTask, Run, run_task
from slipstream.cli.options import engine_options
from slipstream.cli.output.show import console, print_json
from slipstream.cli.output.token_view import TokenView, legend
from slipstream.engines import open_engine
from slipstream.engines.native.scheduler import Limits

if TYPE_CHECKING:
    from slipstream.engines.base import Engine
    from slipstream.plan.ir.nodes import Plan


@dataclass(frozen=True)
class EngineSetup:
    """The engine to open, and its arguments."""

    engine: str
    model: str
    drafter: str
    verify: str | None
    depth: int | None
    options: Mapping[str, str]
    loading: Mapping[str, Any]
    tree: str | None = None
    show_tree: bool = False
    plan: Plan | None = None  # in place of model, drafter, verify, depth, tree and loading
    best_draft: BestDraft = field(default_factory=BestDraft)
    known: ProfileFlags = field(default_factory=ProfileFlags)

    def open(self) -> Engine:
        native: dict[str, Any] = dict(self.known.arguments(self.engine))
        if self.engine == "native":
            native["limits"] = Limits(retained=0)  # one prompt is reused by nobody
            native |= {"shape": self.tree} if self.tree else {}
            native |= {"watch": self.best_draft} if self.show_tree else {}
        elif self.tree or self.show_tree:
            raise ValueError(f"--tree and --show-tree need the native engine; {self.engine} drafts as it does")
        if self.plan is not None:
            return open_engine(self.engine, self.model, options=self.options, plan=self.plan, **native)
        return open_engine(
            self.engine, self.model, self.drafter, self.verify, self.depth, self.options, **self.loading, **native
        )

    def open_plain(self) -> Engine:
        """The same engine without a drafter."""
        return open_engine(self.engine, self.model, "none", options=engine_options(self.options), **self.loading)


def run_generate(
    setup: EngineSetup, engine: Engine, task: GenerationTask, comparing: bool, as_json: bool
) -> dict[str, Any]:
    """Generate, show and compare. Returns the report. After Ctrl-C nothing is compared."""
    run = _run_and_show(engine, task, as_json)
    drafter = "prediction" if task.options.prediction else setup.drafter
    report = completion_report(run, engine, drafter)
    report["drafting_note"] = why_undrafted(run, drafter, setup.depth, engine.drafting_cost)
    report["interrupted"] = run.interrupted
    if comparing and not run.interrupted:
        try:
            report |= _compare(setup, engine, task, run)
        except KeyboardInterrupt:
            report["interrupted"] = True
    if setup.show_tree:
        report["tree"] = setup.best_draft.nodes
    if as_json:
        print_json(report)
    else:
        _show_report(report, setup, engine)
    return report


def _run_and_show(engine: Engine, task: GenerationTask, quiet: bool) -> Run:
    """Run the task and show its text, unless `quiet`."""
    if quiet:
        return run_task(engine, task)
    view = TokenView(console())

    def on_sample(number: int) -> None:
        view.end()
        console(stderr=True).print(f"sample {number + 1} of {task.options.n}", style="dim")

    run = run_task(engine, task, view.show, on_sample)
    view.end()
    return run


def _compare(setup: EngineSetup, engine: Engine, task: GenerationTask, run: Run) -> dict[str, Any]:
    with console(stderr=True).status("comparing with plain decoding") as status:

        def on_pair(done: int, least: int) -> None:
            status.update(f"comparing with plain decoding: pair {done + 1} of at least {least}; Ctrl-C ends it")

        if engine.capabilities.switch:
            return compare(engine, task, run, on_pair)
        return compare_apart(engine, setup.open_plain, task, run, on_pair)


def _show_report(report: dict[str, Any], setup: EngineSetup, engine: Engine) -> None:
    notes = console(stderr=True)
    if setup.best_draft.nodes:
        notes.print(drawing(setup.best_draft, lambda token: engine.text.decode([token])))
    show_logprobs(report)
    if console().is_terminal and report["drafted"]:
        notes.print(legend())
    show_statistics(report)
    if report["interrupted"]:
        notes.print("ended by Ctrl-C", style="bold")
