"""Sampled outcomes against exact probabilities, with a bounded false-alarm rate.

Chi-squared asymptotics do not hold at 1e-6. So every bin gets its exact binomial tail, with a Bonferroni correction
over all bins of a check. One check raises a false alarm with probability below `ALARM`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch

from slipstream.audit.check import Check
from slipstream.audit.subject import Pair, Subject
from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import Dense, Law
from slipstream.core.verify.token import acceptance, residual

ALARM = 1e-7  # per check; an audit has fewer than ten sampled checks


def binomial_tail(count: int, trials: int, prob: float) -> float:
    """P(X <= count) or P(X >= count), whichever is the smaller, for X binomial. Terms shrink away from the mean."""
    if prob <= 0 or prob >= 1:
        return 1.0 if count == (trials if prob >= 1 else 0) else 0.0
    step = 1 if count > trials * prob else -1
    log_term = (
        math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        + count * math.log(prob) + (trials - count) * math.log1p(-prob)
    )  # fmt: skip
    term = total = math.exp(log_term)
    odds = prob / (1 - prob)
    while 0 <= count + step <= trials and term > total * 1e-17:
        term *= (trials - count) / (count + 1) * odds if step > 0 else count / ((trials - count + 1) * odds)
        count += step
        total += term
    return min(1.0, total)


@dataclass(frozen=True)
class Fit:
    """The bin of a sample with the smallest tail probability."""

    worst: Hashable
    tail: float
    bins: int
    trials: int

    @property
    def passed(self) -> bool:
        return 2 * self.tail * self.bins >= ALARM

    def __str__(self) -> str:
        limit = ALARM / 2 / self.bins
        return f"{self.trials} samples, {self.bins} bins, smallest tail {self.tail:.1e} (alarm below {limit:.0e})"


def fit(counts: Counter[Hashable], expected: Mapping[Hashable, float]) -> Fit:
    """Compare counts with probabilities. An outcome of probability zero that occurred is a bin of its own."""
    trials = counts.total()
    bins = expected.keys() | counts.keys()
    tails = {key: binomial_tail(counts[key], trials, expected.get(key, 0.0)) for key in bins}
    worst = min(tails, key=lambda key: tails[key])
    return Fit(worst, tails[worst], len(bins), trials)


def check_sampled(name: str, subject: Subject, pair: Pair, samples: int, length: int = 3, seed: int = 1) -> Check:
    """Many short continuations by the shipped loop, in one ragged batch, against the target's joint law."""
    rows = [subject.row(pair, length, seed=seed * samples + i) for i in range(samples)]
    subject.run(pair, rows)
    counts: Counter[Hashable] = Counter(tuple(row.output) for row in rows)
    law = subject.joint(pair, length) if subject.process is None else subject.process_joint(pair, None, length)
    expected: dict[Hashable, float] = {**law}  # type: ignore[dict-item]
    result = fit(counts, expected)
    return Check(name, "sampled", result.passed, str(result))


def check_rows(name: str, target_probs: Float[Tensor, "n vocab"], draft: Law) -> Check:
    """Accepted mass plus residual mass equals p, on given rows of p and q."""
    target_probs, draft_probs = target_probs.double(), draft.dense().double()
    off = max(float((probs.sum(-1) - 1).abs().max()) for probs in (target_probs, draft_probs))
    target_probs = target_probs / target_probs.sum(-1, keepdim=True)
    draft_probs = draft_probs / draft_probs.sum(-1, keepdim=True)
    kept = draft_probs * acceptance(target_probs, draft_probs)
    rejected = 1 - kept.sum(-1, keepdim=True)
    emitted = kept + rejected * residual(target_probs, Dense(draft_probs))
    worst = float((emitted - target_probs).abs().max())
    size = f"{len(target_probs)} rows of {target_probs.shape[1]} tokens"
    detail = f"{size}, largest deviation {worst:.1e}; as given they sum to 1 within {off:.0e}"
    return Check(name, "rows", worst < 1e-12 and off < 1e-5, detail)


def check_random_rows(name: str) -> Check:
    """`check_rows` on random rows of a large vocabulary."""
    p, q = random_rows(8, 5000, seed=3)
    return check_rows(name, p, Dense(q))


def random_rows(rows: int, vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random p and q of a large vocabulary with few likely tokens and some zeros."""
    generator = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(2, rows, vocab, generator=generator, dtype=torch.float64)
    logits[torch.rand(logits.shape, generator=generator) < 0.3] = -torch.inf
    p, q = logits.softmax(-1)
    return p, 0.7 * p + 0.3 * q
