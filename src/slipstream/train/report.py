"""The results of a training: a table, curves, and a README beside the weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.train.loop import mean_tau, read_journal
from slipstream.train.run import TrainingResult
from slipstream.train.tau import Sums

NOT_MEASURED = "not measured"


def summary(outcome: TrainingResult) -> dict[str, Any]:
    """Plain values, fit for JSON; a tau that was not measured is None."""
    return {
        "folder": str(outcome.folder),
        "finished": outcome.finished,
        "parameters": outcome.parameters,
        "read_per_token": outcome.weights_read,
        "cost": round(outcome.cost, 4),
        "answered_tokens": outcome.answer_tokens,
        "tasks": {task: taus(sums) for task, sums in sorted(outcome.tasks.items())},
    }


def taus(sums: Sums) -> dict[str, float | None]:
    return {"tau_greedy": _rounded(sums.greedy), "tau_sampled": _rounded(sums.sampled)}


def _rounded(tau: float | None) -> float | None:
    return None if tau is None else round(tau, 3)


def table_rows(outcome: TrainingResult) -> list[tuple[str, str, str]]:
    """Task, tau greedy, tau at temperature 1; the mean over the tasks it was measured on last."""
    by_task = {task: taus(sums) for task, sums in sorted(outcome.tasks.items())}
    mean: dict[str, Any] = mean_tau(outcome.tasks)
    return [
        (task, *(_shown(tau.get(name)) for name in ("tau_greedy", "tau_sampled")))
        for task, tau in (by_task | {"mean": mean}).items()
    ]


def _shown(tau: float | None) -> str:
    return NOT_MEASURED if tau is None else f"{tau:.2f}"


def write_card(outcome: TrainingResult, command: str, commit: str) -> None:
    """README.md of the folder: what the drafter is, its data, its settings, and its tau."""
    from slipstream.drafters.files.folder import CONFIG
    from slipstream.models.sources.folder import read_json

    about = read_json(outcome.folder / CONFIG)
    method, training = about["slipstream_drafter"], about["training"]
    table = "\n".join(f"| {task} | {greedy} | {sampled} |" for task, greedy, sampled in table_rows(outcome))
    settings = ", ".join(f"{key} {value}" for key, value in training.items() if key != "data")
    text = f"""# A drafter of kind {method} for {about["target"]}

Target weights: sha256 `{about["target_sha256"]}`. Use: `slipstream generate -m {about["target"]} -d FOLDER`.

- {outcome.parameters:,} parameters. One drafted token reads {outcome.weights_read:,} weights, the output rows of the
  draft vocabulary included: {outcome.cost:.1%} of the weights that the target reads for one token.
- Trained on {outcome.answer_tokens:,} tokens of the target's answers to the prompts of {", ".join(training["data"])}.
- Settings: {settings}.
- Commit {commit}; command `{command}`.

Tau of a chain of five on held-out prompts:

| task | greedy | temperature 1 |
|---|--:|--:|
{table}
"""
    (outcome.folder / "README.md").write_text(text, encoding="utf-8")


PANELS = (
    ("loss", {"loss": "loss"}),
    ("tau on held-out prompts", {"tau_greedy": "greedy", "tau_sampled": "temperature 1"}),
)


def draw_curves(folder: Path) -> Path | None:
    """Draw loss and tau over steps. Panels without a value are left out.

    None where matplotlib is not installed, or where no step was made.
    """
    journal = read_journal(folder / "work")
    panels = [panel for panel in PANELS if any(key in entry for entry in journal for key in panel[1])]
    if find_spec("matplotlib") is None or not panels:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    for axis, (title, labels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for key, label in labels.items():
            points = [(entry["step"], entry[key]) for entry in journal if key in entry]
            if points:  # markers make a curve of one point visible
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.legend()
    path = folder / "curves.png"
    figure.savefig(path, dpi=120)
    return path
