"""How often the bound of `slipstream plan calibrate` holds, by simulation.

    python benchmarks/calibration_coverage.py [--trials 2000] [--problems 150 400] [--margins 0.02 0.05] [--out FILE]

A population of problems is a difficulty d between 0 and 1, by which the two models are right or wrong, and a score of
the small model's answer that follows d with noise. Each trial draws a calibration set, calibrates a threshold for a
margin, and looks up the true loss of that threshold in a large sample of the same population.

- `kept`: share of trials in which the true loss is at most the margin. The claim of `calibrate` is 95 %.
- `bound`: share of trials in which the reported bound of the difference is not above the true difference.
- `large_share`: the mean share of requests that the large model sees.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.bench.tasks.calibrate import within_margin
from slipstream.bench.tasks.outcome import Answered, TaskOutcome
from slipstream.bench.tasks.pair_runs import SmallRun
from slipstream.bench.tasks.problems import Problem, TaskSet
from slipstream.core.lossy.deferral import AnswerEvidence

WORLD = 400_000  # problems by which true losses are known


@dataclass(frozen=True)
class Population:
    """How often the models are right by difficulty, and how well the score follows it."""

    small: float  # a problem of this difficulty is right in half of the cases
    large: float
    noise: float  # standard deviation of the score around 1 - d
    steep: float = 12.0

    def draw(self, chance: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores, and whether the small and the large model are right. Both meet the same luck in part."""
        difficulty, luck = chance.random(count), chance.random(count)
        own = np.where(chance.random(count) < 0.5, luck, chance.random(count))
        small = own < 1 / (1 + np.exp(self.steep * (difficulty - self.small)))
        large = luck < 1 / (1 + np.exp(self.steep * (difficulty - self.large)))
        score = 1 / (1 + np.exp(-4 * (0.5 - difficulty + self.noise * chance.normal(size=count))))
        return score, small, large


POPULATIONS = {
    "good score": Population(0.5, 0.7, 0.1),
    "weak score": Population(0.5, 0.7, 0.6),
    "score of noise": Population(0.5, 0.6, 20.0),
    "equal models": Population(0.6, 0.6, 0.3),
    "models slightly apart": Population(0.58, 0.6, 0.3),
}


def simulate(population: Population, problems: int, margin: float, trials: int) -> dict[str, float]:
    """The figures of some trials."""
    world = population.draw(np.random.default_rng(1), WORLD)
    order = np.argsort(world[0])
    scores = world[0][order]
    gain = np.concatenate([[0.0], np.cumsum((world[1].astype(float) - world[2])[order][::-1])]) / WORLD
    kept = bound = share = 0.0
    for trial in range(trials):
        run, large = calibration_set(population, np.random.default_rng(trial + 2), problems)
        found = within_margin(run, large, "simulated", margin)
        count = 0 if found.threshold == 1 else WORLD - int(np.searchsorted(scores, found.threshold, side="right"))
        true = gain[count]  # those above the threshold are kept
        kept += true >= -margin
        bound += true >= found.difference_bound
        share += found.large_share
    return {"kept": kept / trials, "bound": bound / trials, "large_share": share / trials}


def calibration_set(population: Population, chance: np.random.Generator, count: int) -> tuple[SmallRun, TaskOutcome]:
    scores, small, large = population.draw(chance, count)
    task = TaskSet("simulated", tuple(Problem(str(n), "?", "exact", "x") for n in range(count)))
    runs = [
        TaskOutcome(
            task,
            tuple(Answered(str(n), 1.0, 1, 1.0, correct=bool(value)) for n, value in enumerate(right)),
            True,
            "plain",
        )
        for right in (small, large)
    ]
    evidence = tuple(AnswerEvidence("") for _ in range(count))
    return SmallRun(runs[0], evidence, 0.0, known={"simulated": scores.tolist()}), runs[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--problems", type=int, nargs="+", default=[150, 400])
    parser.add_argument("--margins", type=float, nargs="+", default=[0.02, 0.05])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print("| population | problems | margin | loss within margin | bound holds | large share |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, population in POPULATIONS.items():
        for problems in args.problems:
            for margin in args.margins:
                found = simulate(population, problems, margin, args.trials)
                rows.append({"population": name, "problems": problems, "margin": margin, **found})
                print(f"| {name} | {problems} | {margin:g} | {found['kept']:.3f} | {found['bound']:.3f} | "
                      f"{found['large_share']:.2f} |", flush=True)  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({"trials": args.trials, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
