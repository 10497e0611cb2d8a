"""The checks of an engine through its public interface."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import torch

from slipstream.audit.check import Check
from slipstream.audit.engines.continuations import Continuations, by_chance, distance, shares
from slipstream.audit.engines.engine_subject import LENGTH, EngineSubject, check_done
from slipstream.audit.engines.homogeneity import homogeneous
from slipstream.audit.engines.surprise import surprises
from slipstream.audit.real import RealPair, next_law
from slipstream.audit.statistical import ALARM, fit
from slipstream.core.sampling import Sampling
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Completion

NUMERICS = 0.15  # total variation of a next-token law above which the weights are not the same
WIDTH = 3  # tokens that are distinguished at each position
NUMERICS_CHECK = "next-token laws against float32"
GREEDY_CHECK = "temperature 0, speculation on and off"
SEED_CHECKS = (
    "no token that the law excludes, speculation on",
    "no token that the law excludes, speculation off",
    "one seed",
)


def numerics(subject: EngineSubject, tree: Continuations) -> Check:
    """How far the engine's next-token laws are from float32, at every position of the tree."""
    paths = list(tree.shown)
    own = subject.own(paths)
    if own is None:
        reason = "only at temperature 1" if subject.plain.capabilities.logprobs else "it gives no logprobs"
        return Check(NUMERICS_CHECK, "numerics", True, f"not measured: {reason}")
    with torch.inference_mode():
        reference = subject.reference(paths)
    worst = max(_apart(a, b) for a, b in zip(own, reference, strict=True))
    gap = max(
        abs(_log(a[t]) - _log(b[t])) for a, b in zip(own, reference, strict=True) for t in list(b)[:WIDTH] if t in a
    )
    subject.record(numerics_tv=worst, numerics_logprob=gap)
    detail = (
        f"{len(paths)} positions, total variation at most {worst:.1e}, log-probabilities of likely tokens {gap:.1e}"
    )
    return Check(NUMERICS_CHECK, "numerics", worst < NUMERICS, f"{detail} (alarm above {NUMERICS})")


def against(
    name: str, layer: str, counts: Counter[Hashable], law: dict[Hashable, float], own: bool, subject: EngineSubject
) -> Check:
    """Exact tails against a law. Only the engine's own law can fail; the float32 law is of another precision."""
    result, away, chance = fit(counts, law), distance(shares(counts), law), by_chance(law, counts.total())
    subject.record(**{f"{layer}_tail": result.tail, f"{layer}_tv": away, f"{layer}_tv_by_chance": chance})
    detail = f"{result}; total variation {away:.3f}, by chance {chance:.3f}"
    note = "its own law" if own else "the float32 law, so not judged: another precision has another law"
    return Check(name, layer, result.passed or not own, f"{detail}; against {note}")


def on_and_off(
    fast: Counter[Hashable],
    plain: Counter[Hashable],
    reference: dict[Hashable, float],
    drafted: int,
    subject: EngineSubject,
) -> Check:
    """Sampling with speculation against plain sampling of the same engine."""
    name = "speculation on against off"
    result = homogeneous(fast, plain)
    away = [distance(shares(counts), reference) for counts in (fast, plain)]
    subject.record(chi_squared=result.chi_squared, chi_squared_p=result.chance, drafted=drafted)
    subject.record(reference_tv_on=away[0], reference_tv_off=away[1])
    if not drafted:
        return Check(
            name, "sampled", False, "nothing was drafted, so nothing was tested; try another drafter or option"
        )
    detail = f"{drafted} tokens drafted; {result}; total variation from float32 {away[0]:.3f} on, {away[1]:.3f} off"
    return Check(name, "sampled", result.passed, detail)


def greedy(subject: EngineSubject, tokens: int = 32) -> Check:
    """Texts at temperature 0. Where they differ, their gap in float32 shows whether it was a tie."""
    sides = [
        engine.generate([list(p) for p in subject.prompts], Sampling(0), max_tokens=tokens)
        for engine in (subject.fast, subject.plain)
    ]
    for side in sides:
        check_done(side)
    gaps = [
        gap
        for prompt, a, b in zip(subject.prompts, *sides, strict=True)
        if (gap := first_difference(subject, prompt, a.token_ids, b.token_ids)) is not None
    ]
    limit = 2 * subject.figures.get("numerics_logprob", 0.01)
    subject.record(greedy_differ=len(gaps), greedy_gap=max(gaps, default=0.0), greedy_tau=_tau(sides[0]))
    detail = f"{len(subject.prompts)} texts of {tokens} tokens, tau {_tau(sides[0]):.2f}; {len(gaps)} differ"
    if gaps:
        detail += f", at tokens {max(gaps):.1e} apart in log-probability (a tie below {limit:.1e})"
    return Check(GREEDY_CHECK, "replay", all(gap <= limit for gap in gaps), detail)


def first_difference(
    subject: EngineSubject, prompt: Sequence[int], ours: Sequence[int], plain: Sequence[int]
) -> float | None:
    """The gap in float32 between the first two tokens that differ; None where the texts are equal."""
    at = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), None)
    if at is None:
        return None if len(ours) == len(plain) else float("inf")
    pair = RealPair(subject.model, NoDrafter(subject.model.vocab), (), prompt)
    with torch.inference_mode():
        law = next_law(pair, [*prompt, *ours[:at]], Sampling(1.0))
    return abs(_log(float(law[ours[at]])) - _log(float(law[plain[at]])))


def seeds(subject: EngineSubject, tokens: int = 16) -> Iterator[Check]:
    """The checks SEED_CHECKS. One seed requested twice must give one text; the same text without speculation is only
    reported. No token of these texts may be one that the law nearly excludes."""
    samplings = [Sampling(subject.temperature, seed=7 + i) for i in range(len(subject.prompts))]
    prompts = [list(prompt) for prompt in subject.prompts]
    engines = (subject.fast, subject.fast, subject.plain)
    first, again, off = (engine.generate(prompts, samplings, max_tokens=tokens) for engine in engines)
    for side in (first, again, off):
        check_done(side)
    yield excluded(SEED_CHECKS[0], [*first, *again], subject, "on")
    yield excluded(SEED_CHECKS[1], off, subject, "off")
    twice = sum(a.token_ids == b.token_ids for a, b in zip(first, again, strict=True))
    same = sum(a.token_ids == b.token_ids for a, b in zip(first, off, strict=True))
    texts = len(samplings)
    subject.record(seed_repeats=twice, seed_same_off=same, seed_texts=texts)
    detail = f"requested twice: {twice} of {texts} texts the same; speculation off: {same} of {texts}"
    promised = subject.fast.capabilities.seed
    detail = detail if promised else f"{detail}; not promised"
    yield Check(SEED_CHECKS[2], "replay", twice == texts or not promised, detail)


def excluded(name: str, done: Sequence[Completion], subject: EngineSubject, side: str) -> Check:
    """The smallest surprise in float32. Rounding changes it little; a token of another law by orders of magnitude."""
    texts = [(subject.prompts[i % len(subject.prompts)], completion.token_ids) for i, completion in enumerate(done)]
    with torch.inference_mode():
        values = [s for prompt, tokens in texts for s in surprises(subject.model, prompt, tokens, subject.temperature)]
    least = min(values, default=1.0)
    corrected = min(1.0, least * len(values))
    subject.record(**{f"least_surprise_{side}": least})
    detail = f"{len(values)} tokens, the least likely with those below it {least:.1e}, corrected {corrected:.1e}"
    return Check(name, "sampled", corrected >= ALARM, f"{detail} (alarm below {ALARM:.0e})")


def unseen(subject: EngineSubject, law: dict[Hashable, float], samples: int) -> Check:
    """The resolution of this audit: a smaller bias is not detected."""
    chance = by_chance(law, samples)
    hidden = f"acceptance and residual probabilities, draws that are used twice, and tokens after the first {LENGTH}"
    detail = f"a bias below a total variation of about {3 * chance:.2f} on these {len(law)} outcomes; {hidden}"
    return Check("not seen from outside", "outside", True, detail)


def _apart(own: dict[int, float], reference: dict[int, float]) -> float:
    """Total variation over the tokens that both name, with the rest as one token."""
    both = own.keys() & reference.keys()
    rest = abs(sum(own[t] for t in both) - sum(reference[t] for t in both))
    return (sum(abs(own[t] - reference[t]) for t in both) + rest) / 2


def _tau(done: Sequence[Completion]) -> float:
    cycles = sum(c.stats.cycles for c in done)
    return sum(c.stats.emitted for c in done) / cycles if cycles else 0.0


def _log(value: float) -> float:
    return math.log(max(value, 1e-30))
