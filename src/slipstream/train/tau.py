"""Tau of a drafter that is still being trained, from one pass over answers of the target.

Greedy: drafted tokens are accepted while they equal the target's choices. So decoding follows a greedy answer, and each
cycle accepts the run of right guesses at its base. This tau is exact.

Temperature 1: the probability that the first j drafted tokens are all accepted is the mean of prod min(1, q/p) over the
target's own answers, because q min(1, p/q) = p min(1, q/p). Every base of an answer sampled at temperature 1 counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess, Method
from slipstream.train.teacher import Teacher, TeacherOutput


@dataclass
class Sums:
    """Emitted tokens and passes of greedy answers; expected accepted tokens and bases of sampled answers."""

    emitted: float = 0.0
    cycles: int = 0
    expected: float = 0.0
    bases: int = 0

    @property
    def greedy(self) -> float | None:
        """Tau at temperature 0; None where no held-out answer was greedy."""
        return self.emitted / self.cycles if self.cycles else None

    @property
    def sampled(self) -> float | None:
        """Tau at temperature 1; None where no held-out answer was sampled at 1 and longer than the draft."""
        return 1 + self.expected / self.bases if self.bases else None


@torch.no_grad()
def measure(method: Method, teacher: Teacher, batches: Iterable[SampleBatch], depth: int) -> dict[str, Sums]:
    """The sums of each task."""
    by_task: dict[str, Sums] = defaultdict(Sums)
    method.net.eval()
    for batch in batches:
        batch = batch.to(teacher.device)
        output = teacher.read(batch, method.layers)
        guesses = method.guesses(batch, output, depth)
        runs = run_lengths(guesses).tolist()
        accepted, bases = (x.tolist() for x in expected(guesses, batch, output, teacher))
        rows = zip(
            batch.task, batch.temperature.tolist(), batch.prompt_length.tolist(), batch.length.tolist(), strict=True
        )
        for r, (task, temperature, prompt, length) in enumerate(rows):
            sums = by_task[task]
            if temperature == 0:
                emitted, cycles = walk(runs[r], prompt, length, method.drafts_in_prefill)
                sums.emitted, sums.cycles = sums.emitted + emitted, sums.cycles + cycles
            elif temperature == 1:
                sums.expected, sums.bases = sums.expected + accepted[r], sums.bases + bases[r]
    method.net.train()
    return dict(by_task)


def run_lengths(guesses: list[Guess]) -> Int[Tensor, "rows bases"]:
    """How many drafted tokens from each base are right before the first wrong one."""
    return torch.stack([guess.right & (guess.position >= 0) for guess in guesses]).long().cumprod(0).sum(0)


def walk(runs: list[int], prompt: int, length: int, drafts_in_prefill: bool = False) -> tuple[int, int]:
    """Tokens and passes of decoding one answer of `length - prompt` tokens.

    The prefill pass emits one token, and the accepted part of a draft where the method can draft that early.
    """
    answer = length - prompt
    emitted, cycles = (0, 0) if drafts_in_prefill else (min(1, answer), 1)
    while emitted < answer:
        emitted = min(answer, emitted + 1 + runs[max(0, prompt + emitted - 2)])
        cycles += 1
    return emitted, max(1, cycles)


def expected(
    guesses: list[Guess], batch: SampleBatch, output: TeacherOutput, teacher: Teacher
) -> tuple[Tensor, Tensor]:
    """For each row, the expected number of accepted tokens summed over its bases, and the number of bases."""
    supervised = batch.supervised
    log_p = torch.zeros(supervised.shape, device=supervised.device)
    log_p[supervised] = teacher.token_log_probs(output.last[supervised], batch.tokens.roll(-1, 1)[supervised])
    alive = torch.ones(guesses[0].position.shape, device=log_p.device)
    total = torch.zeros_like(alive)
    for guess in guesses:
        exists = guess.position >= 0
        ratio = (guess.log_prob - log_p.gather(1, guess.position.clamp(min=0))).exp().clamp(max=1)
        alive = torch.where(exists, alive * ratio, 0)
        total += alive
    complete = guesses[-1].position >= 0  # near the end of the answer a draft is cut short, which is not a rejection
    return (total * complete).sum(1), complete.sum(1)
