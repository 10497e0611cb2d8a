"""From a graded run of the small model to the file of its deferral classifier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slipstream.bench.tasks.classifier import auc, train_score
from slipstream.bench.tasks.pair_runs import SmallRun
from slipstream.core.lossy.learned import DeferralClassifier
from slipstream.core.spec import spec_text


def trained_run(run: SmallRun, save: Path) -> tuple[SmallRun, str, dict[str, float]]:
    """Train on a run, write the file, and return the run with out-of-fold scores, the score's name and its figures."""
    assert run.layer is not None, "the run read hidden states"
    answered = [bool(evidence.states) for evidence in run.evidence]
    right = [grade for grade, kept in zip(run.outcome.right, answered, strict=True) if kept]
    trained = train_score([evidence.states for evidence in run.evidence if evidence.states], right)
    means = [score for score, kept in zip(run.scores("mean"), answered, strict=True) if kept]
    figures = {**trained.figures, "auc_of_mean": auc(means, right)}
    classifier = DeferralClassifier(
        run.model,
        run.sha256,
        run.layer,
        tuple(float(weight) for weight in trained.classifier.weights),
        trained.classifier.bias,
        f"{run.outcome.task.name}, {len(right)} problems",
        figures,
    )
    classifier.save(save)
    score, marks = spec_text("learned", {"file": str(save)}), iter(trained.out_of_fold)
    return replace(run, known={score: [next(marks) if kept else 0.0 for kept in answered]}), score, figures
