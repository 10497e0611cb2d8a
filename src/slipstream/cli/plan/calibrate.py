"""`slipstream plan calibrate` and `slipstream plan choose`: the small model and the threshold of a route."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags
from slipstream.cli.output.show import Json, print_json

if TYPE_CHECKING:
    from slipstream.bench.tasks.calibrate import Calibration, RuleFigures
    from slipstream.bench.tasks.outcome import TaskOutcome
    from slipstream.bench.tasks.pair_runs import SmallRun

Tasks = Annotated[
    list[str], typer.Option("--task", metavar="NAME|FILE", help="Problems, as in bench; may be given several times.")
]
Margin = Annotated[float, typer.Option(help="The largest loss of accuracy against the large model, at 95 %.")]
Together = Annotated[int, typer.Option(help="Problems at a time; seconds are then those of all over their number.")]
TaskTokens = Annotated[int, typer.Option("--max-tokens", help="The maximum number of generated tokens.")]


def calibrate(
    small: Annotated[str, typer.Option(metavar="MODEL", help="The small model.")],
    task: Tasks,
    model: flags.ModelName = "smollm2-135m",
    score: Annotated[
        str, typer.Option(help="mean, quantile(q=0.1), entropy or learned(file=FILE); learned alone trains --save.")
    ] = "mean",
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --score learned: train the classifier into this file.")
    ] = None,
    margin: Margin = 0.02,
    max_share: Annotated[
        float | None, typer.Option(help="A budget instead: the share of requests that the large model may see.")
    ] = None,
    max_tokens: TaskTokens = 512,
    batch: Together = 1,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    as_json: Json = False,
) -> None:
    """Find the threshold of a request-level route for a wanted quality or budget."""
    from slipstream.bench.tasks.calibrate import check_margin, check_score, within_margin, within_share
    from slipstream.bench.tasks.problems import join_tasks

    tasks = join_tasks(task)
    check_score(score, save is not None)
    if max_share is None:
        check_margin(margin, len(tasks.problems))
    elif not 0 <= max_share <= 1:
        raise ValueError(f"max_share is {max_share:g}; it must be between 0 and 1")
    loading = {"dtype": dtype, "device": device}
    smalls, large = run_models([small], model, task, max_tokens, batch, loading, score)
    run = smalls[small]
    trained: dict[str, Any] = {}
    if save is not None:
        run, score, trained = train(run, save)
    found = (
        within_margin(run, large, score, margin) if max_share is None else within_share(run, large, score, max_share)
    )
    print(f"{found.wanted}: {found.sentence}")
    if as_json:
        print_json(rounded_data(found, small) | trained)


def train(run: SmallRun, save: Path) -> tuple[SmallRun, str, dict[str, Any]]:
    """Train the learned score, and print how well it tells right answers from wrong ones."""
    from slipstream.bench.tasks.train_score import trained_run

    run, score, figures = trained_run(run, save)
    print(
        f"{score}: AUC {figures['auc']:.3f} in {figures['folds']:.0f}-fold cross-validation over "
        f"{len(run.evidence)} answers (mean log-probability: {figures['auc_of_mean']:.3f})"
    )
    return run, score, {"cross_validation": figures}


def choose(
    small: Annotated[list[str], typer.Option(metavar="MODEL", help="A small model; may be given several times.")],
    task: Tasks,
    model: flags.ModelName = "smollm2-135m",
    margin: Margin = 0.02,
    verify: Annotated[
        list[str], typer.Option(metavar="RULE", help="A token-level rule; may be given several times. none: no rule.")
    ] = ["lenient(factor=2)", "cascade_token(alpha=0.3)"],  # noqa: B006  typer copies it
    max_tokens: TaskTokens = 512,
    batch: Together = 1,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure small models, and recommend one with its route or rule, or the large model alone."""
    from slipstream.bench.tasks.calibrate import check_margin, within_margin
    from slipstream.bench.tasks.pair_runs import SCORES
    from slipstream.bench.tasks.problems import join_tasks
    from slipstream.core.rules import rules

    names = [name for name in verify if name != "none"]
    for name in names:
        rules.make(name)
    check_margin(margin, len(join_tasks(task).problems))
    loading = {"dtype": dtype, "device": device}
    smalls, large = run_models(small, model, task, max_tokens, batch, loading)
    found = [(name, within_margin(run, large, score, margin)) for name, run in smalls.items() for score in SCORES]
    drafted = rule_figures(small, names, model, task, max_tokens, batch, loading, large) if verify != ["none"] else []
    every: list[tuple[str, Calibration | RuleFigures]] = [*found, *drafted]
    for name, entry in every:
        print(f"{name}: {entry.sentence}")
    ways: list[tuple[str, Calibration | RuleFigures]] = [pair for pair in found if pair[1].threshold < 1]
    ways += [pair for pair in drafted if pair[1].allowed(margin)]
    name, best = min(ways, key=lambda pair: pair[1].seconds_per_request, default=("", None))
    alone = best is None or best.seconds_per_request >= large.seconds
    print(f"recommended: {'the large model alone' if best is None or alone else words_of(name, best)}")
    if as_json:
        candidates = [rounded_data(entry, name) for name, entry in every]
        recommended = None if best is None or alone else rounded_data(best, name)
        print_json({"recommended": recommended, "candidates": candidates})


def words_of(small: str, best: Calibration | RuleFigures) -> str:
    """The flags of a recommendation, and whether it is lossy."""
    from slipstream.bench.tasks.calibrate import RuleFigures
    from slipstream.bench.tasks.pair_runs import rule_depth

    if not isinstance(best, RuleFigures):
        return f"--route request --small {small} --score {best.score} --threshold {best.threshold:.4g} (lossy)"
    if best.verify is None:
        return f"-d {small} (exact)"
    kind = "exact" if best.lossless else "lossy"
    return f'-d {small} --verify "{best.verify}" --depth {rule_depth(best.verify)} ({kind})'


def rule_figures(
    small: list[str],
    names: list[str],
    model: str,
    task: list[str],
    max_tokens: int,
    batch: int,
    loading: dict[str, Any],
    large: TaskOutcome,
) -> list[tuple[str, RuleFigures]]:
    """Exact speculation and rules with each small model that can draft for the large one."""
    from slipstream.bench.tasks.calibrate import RuleFigures
    from slipstream.bench.tasks.pair_runs import run_rules
    from slipstream.bench.tasks.problems import join_tasks
    from slipstream.bench.tasks.setups import TaskSetup
    from slipstream.bench.tasks.task_run import TaskLoad
    from slipstream.core.sampling import Sampling

    tasks, load, found = join_tasks(task), TaskLoad(Sampling(0), max_tokens, batch), list[tuple[str, RuleFigures]]()
    for name in small:
        try:
            outcomes = run_rules(TaskSetup(model, loading=loading, rows=batch), name, names, tasks, load)
        except ValueError as error:
            print(f"{name}: not a draft model here: {error}")
            continue
        asked = zip((None, *names), outcomes, strict=True)
        found += [(name, RuleFigures.of(outcome, large, verify)) for verify, outcome in asked]
    return found


def run_models(
    small: list[str],
    model: str,
    task: list[str],
    max_tokens: int,
    batch: int,
    loading: dict[str, Any],
    score: str | None = None,
) -> tuple[dict[str, SmallRun], TaskOutcome]:
    """Every model on the problems of all tasks, greedily. `score`: with what it needs of the small models."""
    from slipstream.bench.tasks.pair_runs import run_alone, run_small
    from slipstream.bench.tasks.problems import join_tasks
    from slipstream.bench.tasks.setups import TaskSetup
    from slipstream.bench.tasks.task_run import TaskLoad
    from slipstream.core.sampling import Sampling

    tasks, load = join_tasks(task), TaskLoad(Sampling(0), max_tokens, batch)
    setup = TaskSetup(model, loading=loading, rows=batch)
    smalls = {name: run_small(setup.alone(name), tasks, load, score) for name in small}
    return smalls, run_alone(setup, tasks, load)


def rounded_data(found: Calibration | RuleFigures, small: str) -> dict[str, Any]:
    from slipstream.bench.session import rounded
    from slipstream.bench.tasks.calibrate import RuleFigures

    data: dict[str, Any] = rounded({"small": small, **found.data()})
    if isinstance(found, RuleFigures):
        return data
    return data | {"threshold": found.threshold}  # all digits: requests at the threshold are handed over
