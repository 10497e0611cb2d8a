"""What a training came to: a table, curves, and a card beside the weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.train.loop import read_journal
from slipstream.train.run import Outcome


def summary(outcome: Outcome) -> dict[str, Any]:
    """Plain values, fit for JSON."""
    tasks = {
        task: {"tau_greedy": round(sums.greedy, 3), "tau_sampled": round(sums.sampled, 3)}
        for task, sums in sorted(outcome.tasks.items())
    }
    return {
        "folder": str(outcome.folder),
        "finished": outcome.finished,
        "parameters": outcome.parameters,
        "read_per_token": outcome.read,
        "cost": round(outcome.read / outcome.target, 4),
        "answered_tokens": outcome.answers,
        "tasks": tasks,
    }


def lines(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Task, tau greedy, tau at temperature 1; the mean over tasks last."""
    told = summary(outcome)["tasks"]
    rows = [(task, f"{tau['tau_greedy']:.2f}", f"{tau['tau_sampled']:.2f}") for task, tau in told.items()]
    if told:
        means = [sum(tau[key] for tau in told.values()) / len(told) for key in ("tau_greedy", "tau_sampled")]
        rows.append(("mean", f"{means[0]:.2f}", f"{means[1]:.2f}"))
    return rows


def write_card(outcome: Outcome, command: str, commit: str) -> None:
    """README.md of the folder: what it is, what it was trained on, how, and what it reaches."""
    from slipstream.drafters.folder import CONFIG
    from slipstream.models.sources.folder import read_json

    about = read_json(outcome.folder / CONFIG)
    kind, training = about["slipstream_drafter"], about["training"]
    table = "\n".join(f"| {task} | {greedy} | {sampled} |" for task, greedy, sampled in lines(outcome))
    settings = ", ".join(f"{key} {value}" for key, value in training.items() if key != "data")
    text = f"""# A drafter of kind {kind} for {about["target"]}

Target weights: sha256 `{about["target_sha256"]}`. Use: `slipstream generate -m {about["target"]} -d FOLDER`.

- {outcome.parameters:,} parameters, {outcome.read:,} read for a drafted token with the output rows of its vocabulary:
  {outcome.read / outcome.target:.1%} of what the target reads for one.
- Trained on {outcome.answers:,} tokens of the target's own answers to the prompts of {", ".join(training["data"])}.
- Settings: {settings}.
- Commit {commit}; command `{command}`.

Tau of a chain of five on prompts that were held out:

| task | greedy | temperature 1 |
|---|--:|--:|
{table}
"""
    (outcome.folder / "README.md").write_text(text, encoding="utf-8")


def draw_curves(folder: Path) -> Path | None:
    """Loss and tau over steps as a picture; None where matplotlib is not installed or nothing was noted."""
    journal = read_journal(folder / "work")
    if find_spec("matplotlib") is None or not journal:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axis, keys, title in ((left, ["loss"], "loss"), (right, ["tau_greedy", "tau_sampled"], "tau, held out")):
        for key in keys:
            points = [(entry["step"], entry[key]) for entry in journal if key in entry]
            axis.plot(*zip(*points, strict=True), label=key.removeprefix("tau_")) if points else None
        axis.set_title(title)
        axis.set_xlabel("step")
    right.legend()
    path = folder / "curves.png"
    figure.savefig(path, dpi=120)
    return path
