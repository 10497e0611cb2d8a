"""`slipstream plan optimise`, `explain` and `levels`: run passes, say why, and compare levels on one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from slipstream.bench.figures import measure_energy_figures, measure_figures
from slipstream.bench.measure.energy import Meter, power_model
from slipstream.bench.statistics import median
from slipstream.cli.generation import GenerationTask, run_task
from slipstream.cli.output.show import console
from slipstream.engines.drafter_catalogue import DrafterCatalogue, candidates
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.engines.options import GenerationOptions
from slipstream.models.weights.precision import choose_device
from slipstream.plan.ir.nodes import DraftNode, ModelNode, Plan
from slipstream.plan.ir.text import line_of, text_of
from slipstream.plan.lower.native import LOADING, drafting
from slipstream.plan.passes.context import PassContext
from slipstream.plan.passes.figures import Figures
from slipstream.plan.passes.levels import ABOUT, LEVELS, MEASURED, METERED, PassStep, passes_of, run_passes

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.models.target import Target

REPEATS = 3  # of each level in `plan levels`
SIDE_BY_SIDE = tuple(level for level in LEVELS if not set(LEVELS[level]) & set(METERED))


@dataclass(frozen=True)
class EnergyBounds:
    """What `-O e` is told: a stated power in watts in place of a counter, and the most milliseconds per token."""

    watts: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        if self.latency is not None and not 0 < self.latency < float("inf"):
            raise ValueError(f"--latency is {self.latency:g}; it must be milliseconds per token, above 0")

    def check_used(self, names: Sequence[str]) -> None:
        """Raise ValueError if a bound is given and no pass uses it."""
        for name in ("watts", "latency"):
            if getattr(self, name) is not None and not set(names) & set(METERED):
                raise ValueError(f"--{name} is for energy; add -O e, or leave it out")


def optimise(plan: Plan, names: Sequence[str], kinds: Sequence[str], bounds: EnergyBounds) -> list[PassStep]:
    """Run passes on a plan. Figures are measured first, if a pass needs them."""
    bounds.check_used(names)
    figures = None
    if set(names) & set(METERED):
        with power_model(bounds.watts):
            figures = measured(plan, kinds, energy=True)
    elif set(names) & set(MEASURED):
        figures = measured(plan, kinds, keeps_drafter="select-drafter" not in names)
    latency = None if bounds.latency is None else bounds.latency / 1000
    context = PassContext(figures, choose_device(plan.target.device), latency=latency)
    return run_passes(plan, names, context, DrafterCatalogue())


def measured(
    plan: Plan,
    kinds: Sequence[str],
    target: Target | None = None,
    energy: bool = False,
    keeps_drafter: bool = False,
) -> Figures:
    """Figures of the plan's model on this machine, with a progress line. `energy`: joules per token, too.

    `keeps_drafter`: no pass chooses another drafter, so variants of the plan's own are measured."""
    model = plan.target
    if energy and (reason := Meter.open(choose_device(model.device))[1]):
        raise ValueError(f"-O e needs joules per token: {reason}; --watts states a power for an estimate")
    options: dict[str, dict[str, Any]] = {kind: {} for kind in kinds} or dict(candidates(model.model))
    own_kind: tuple[str, ...] = ()
    if draft := plan.one(DraftNode):  # the plan's own drafter is measured with its own options
        kind, own = drafting(plan, draft)
        own_kind = (kind,)
        options |= {} if kinds and kind not in kinds else {kind: own}
    target = target or loaded(model)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("measuring")

        def on_step(way: str, done: int, total: int) -> None:
            bar.update(task, description=f"measuring {model.model}: {way} ({done + 1} of {total})")

        if energy:
            return measure_energy_figures(target, options, on_step=on_step)
        kept = next((kind for kind in own_kind if keeps_drafter and kind in options), None)
        return measure_figures(target, options, on_step=on_step, always=own_kind, kept=kept)


def loaded(model: ModelNode) -> Target:
    return build_target(model.model, **{name: getattr(model, name) for name in LOADING})


def check_shown(shown: Sequence[str], passes: Sequence[str]) -> None:
    """ValueError for a pass to show that does not run."""
    if missing := [name for name in shown if name not in passes]:
        raise ValueError(f"the pass {missing[0]} does not run here; those that run are {', '.join(passes) or 'none'}")


def show_steps(steps: Sequence[PassStep], before: bool, after: bool, only: Sequence[str] = ()) -> None:
    """Print the plan before or after passes: all of them, or those that are named."""
    out = console(stderr=True)
    for step in steps:
        if only and step.name not in only:
            continue
        if before:
            out.print(f"# before {step.name}", style="dim")
            out.print(text_of(step.before))
        if after:
            out.print(f"# after {step.name}" + ("" if step.changed else ": unchanged"), style="dim")
            out.print(text_of(step.after))


def explained(steps: Sequence[PassStep]) -> list[dict[str, Any]]:
    """What each pass changed, and why."""
    return [{"pass": step.name, "changed": step.changed, "reasons": list(step.reasons)} for step in steps]


def compare_levels(
    plan: Plan, kinds: Sequence[str], prompt: str, sampling: Sampling, max_tokens: int
) -> list[dict[str, Any]]:
    """Every level on one prompt, in turns."""
    target = loaded(plan.target)
    figures = measured(plan, kinds, target)
    context = PassContext(figures, choose_device(plan.target.device))
    plans = {level: run_passes(plan, passes_of(level), context, DrafterCatalogue())[-1].after for level in SIDE_BY_SIDE}
    task = GenerationTask(prompt, sampling, GenerationOptions(max_tokens))
    engines = {
        level: NativeEngine(target, plan=level_plan, limits=Limits(retained=0)) for level, level_plan in plans.items()
    }
    try:
        runs = {level: [run_task(engine, task)] for level, engine in engines.items()}  # the first is a warm-up
        for _ in range(REPEATS):
            for level, engine in engines.items():
                runs[level].append(run_task(engine, task))
    finally:
        for engine in engines.values():
            engine.close()
    plain = median([run.times.speed for run in runs["0"][1:]])
    rows = []
    for level, own in runs.items():
        speed = median([run.times.speed for run in own[1:]])
        same = own[-1].samples[0].token_ids == runs["0"][-1].samples[0].token_ids
        draft = plans[level].one(DraftNode)
        shown = line_of(draft).partition(" draft ")[2] if draft else "none"
        rows.append({
            "level": f"O{level}", "about": ABOUT[level], "draft": shown,
            "tokens_per_second": speed, "against_plain": speed / plain, "tau": own[-1].stats.tau, "same_text": same,
        })  # fmt: skip
    return rows


def levels_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("level", "tokens/s", "against plain", "tau", "same text", "draft"):
        table.add_column(name, justify="left" if name in ("level", "draft") else "right", no_wrap=True)
    for row in rows:
        figures = (f"{row['tokens_per_second']:.1f}", f"{row['against_plain']:.2f}", f"{row['tau']:.2f}")
        table.add_row(row["level"], *figures, "yes" if row["same_text"] else "no", row["draft"])
    return table
