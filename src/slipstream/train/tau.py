"""Tau of a drafter that is still being trained, from one pass over answers of the target.

Greedy: a drafted token is kept while it is the one the target chose, so walking along a greedy answer, each cycle as
long as the run of right guesses at its base, is what decoding would do: the tau is exact. At temperature 1 the chance
that the first j drafted tokens are all kept is the mean over the target's own answers of prod min(1, q/p), since
q min(1, p/q) = p min(1, q/p): every base of a sampled answer is taken into account.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.train.corpus import Batch
from slipstream.train.method import Guess, Method
from slipstream.train.teacher import Lesson, Teacher


@dataclass
class Sums:
    """Emitted tokens and passes of greedy answers; expected tokens and bases of sampled ones; both by depth."""

    emitted: float = 0.0
    cycles: int = 0
    expected: float = 0.0
    bases: int = 0
    reached: list[float] = field(default_factory=list)

    @property
    def greedy(self) -> float:
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def sampled(self) -> float:
        return 1 + self.expected / self.bases if self.bases else 0.0


@torch.no_grad()
def measure(method: Method, teacher: Teacher, batches: Iterable[Batch], depth: int) -> dict[str, Sums]:
    """Sums by task."""
    found: dict[str, Sums] = defaultdict(Sums)
    method.net.eval()
    for batch in batches:
        batch = batch.to(teacher.device)
        lesson = teacher.lesson(batch, method.layers)
        guesses = method.guesses(batch, lesson, depth)
        runs = run_lengths(guesses).tolist()
        kept, counted = (x.tolist() for x in expected(guesses, batch, lesson, teacher))
        rows = zip(batch.task, batch.greedy.tolist(), batch.prompt.tolist(), batch.whole.tolist(), strict=True)
        for r, (task, greedy, prompt, whole) in enumerate(rows):
            sums = found[task]
            if greedy:
                emitted, cycles = walk(runs[r], prompt, whole, method.early)
                sums.emitted, sums.cycles = sums.emitted + emitted, sums.cycles + cycles
            else:
                sums.expected, sums.bases = sums.expected + kept[r], sums.bases + counted[r]
    method.net.train()
    return dict(found)


def run_lengths(guesses: list[Guess]) -> Int[Tensor, "rows bases"]:
    """How many drafted tokens from each base are right before the first wrong one."""
    return torch.stack([guess.right & (guess.place >= 0) for guess in guesses]).long().cumprod(0).sum(0)


def walk(runs: list[int], prompt: int, whole: int, early: bool = False) -> tuple[int, int]:
    """Tokens and passes of decoding one answer. The pass that reads the prompt gives one token, and what is right of a
    draft where one can be made so `early`."""
    emitted, cycles = (0, 0) if early else (min(1, whole - prompt), 1)
    while emitted < whole - prompt:
        emitted = min(whole - prompt, emitted + 1 + runs[max(0, prompt + emitted - 2)])
        cycles += 1
    return emitted, max(1, cycles)


def expected(guesses: list[Guess], batch: Batch, lesson: Lesson, teacher: Teacher) -> tuple[Tensor, Tensor]:
    """Of each row, the expected number of kept tokens summed over its bases, and how many bases."""
    supervised = batch.supervised
    log_p = torch.zeros(supervised.shape, device=supervised.device)
    log_p[supervised] = teacher.said(lesson.last[supervised], batch.tokens.roll(-1, 1)[supervised])
    alive = torch.ones(guesses[0].place.shape, device=log_p.device)
    total = torch.zeros_like(alive)
    for guess in guesses:
        there = guess.place >= 0
        ratio = (guess.said - log_p.gather(1, guess.place.clamp(min=0))).exp().clamp(max=1)
        alive = torch.where(there, alive * ratio, 0)
        total += alive
    whole_runs = guesses[-1].place >= 0  # bases with the answer's end in sight would count as failures
    return (total * whole_runs).sum(1), whole_runs.sum(1)
