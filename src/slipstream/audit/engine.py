"""The audit of any engine from outside: through what it offers to everybody, with speculation on and off.

Two laws are held apart. The *reference* is computed here, in float32, from the same weights. A peer that runs in
bfloat16, or quantised, has a law of its own nearby: that is numerics, no bias, and how far it is away is measured from
the peer's own logprobs. Speculation must keep the peer's *own* law, whatever that is. So continuations sampled with
speculation are tested against the peer's own law, where its logprobs tell it, and always against the peer's own plain
sampling, the control.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from slipstream.audit.check import Check
from slipstream.audit.continuations import Continuations, Path, by_chance, distance, shares
from slipstream.audit.homogeneity import homogeneous
from slipstream.audit.real import RealPair, next_law
from slipstream.audit.statistical import ALARM, fit
from slipstream.audit.surprise import surprises
from slipstream.core.sampling import Sampling
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Completion, Engine
from slipstream.models.run.torch_model import TorchModel

NUMERICS = 0.15  # total variation of a place beyond which the weights are not the same any more
LENGTH, WIDTH = (
    4,
    3,
)  # of the continuations, and tokens told apart at a place: the first token of a reply is not drafted
TOP = 20  # alternatives asked for to learn a law

ENGINE_LAYERS = {
    "numerics": "the peer's own next-token laws, by its logprobs, against float32 from the same weights",
    "control": "plain sampling of the peer, alone",
    "sampled": "sampling with speculation, against the peer's own law (exact binomial tails) and its plain sampling",
    "replay": "token for token: speculation on and off at temperature 0, and one seed asked twice",
    "outside": "what no black box shows",
}


@dataclass
class Box:
    """An engine with speculation, the same without, and the target computed here in float32."""

    fast: Engine
    plain: Engine
    model: TorchModel
    ends: frozenset[int]
    short: Sequence[int]  # continued many times; what drafters look for is in it
    prompts: Sequence[Sequence[int]]
    temperature: float = 1.0
    figures: dict[str, float] = field(default_factory=dict)  # for a record of the findings

    def note(self, **figures: float) -> None:
        self.figures |= figures

    def reference(self, paths: Sequence[Path]) -> list[dict[int, float]]:
        pair = RealPair(self.model, NoDrafter(self.model.vocab), (), self.short)
        found = []
        for path in paths:
            law = next_law(pair, [*self.short, *path], Sampling(self.temperature))
            best = law.topk(min(200, len(law)))
            found.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        return found

    def own(self, paths: Sequence[Path]) -> list[dict[int, float]] | None:
        """The peer's law at some places, where its logprobs tell it; at temperature 1 only, for a few alternatives do
        not tell how a temperature divides the mass."""
        if not self.plain.capabilities.logprobs or self.temperature != 1:
            return None
        texts = [[*self.short, *path] for path in paths]
        done = self.plain.generate(texts, Sampling(1.0, seed=1), max_tokens=1, logprobs=TOP)
        check_done(done)
        return [{token: math.exp(value) for token, value in c.logprobs[0].top_logprobs} for c in done]


def audit_engine(box: Box, samples: int) -> Iterator[Check]:
    """All checks, in the order in which one leans on another."""
    with torch.inference_mode():
        tree = Continuations.of(box.reference, box.ends, LENGTH, WIDTH)
        reference = tree.joint(box.reference)
    assert reference is not None
    own = tree.joint(box.own)
    yield from numerics(box, tree)
    plain = tree.count(sampled(box.plain, box, samples, 0))
    before = box.fast.stats["drafted"]
    fast = tree.count(sampled(box.fast, box, samples, samples))
    drafted = box.fast.stats["drafted"] - before
    law = reference if own is None else own
    whose = "float32" if own is None else "own"
    yield against("plain sampling", "control", plain, law, whose, own is not None, box)
    yield against("sampling with speculation", "sampled", fast, law, whose, own is not None, box)
    yield on_and_off(fast, plain, reference, drafted, box)
    yield greedy(box)
    yield from seeds(box)
    yield unseen(box, law, samples)


def sampled(engine: Engine, box: Box, samples: int, start: int) -> list[list[int]]:
    """A few tokens after the short prompt, many times. The two sides use different seeds, else they would be one
    sample and not two where an engine keeps its seeds."""
    texts: list[list[int]] = []
    for first in range(start, start + samples, 64):
        hows = [Sampling(box.temperature, seed=seed) for seed in range(first, min(first + 64, start + samples))]
        done = engine.generate([list(box.short)] * len(hows), hows, max_tokens=LENGTH)
        check_done(done)
        texts += [completion.token_ids for completion in done]
    return texts


def check_done(done: Sequence[Completion]) -> None:
    for completion in done:
        if completion.error:
            raise ValueError(completion.error)


def numerics(box: Box, tree: Continuations) -> Iterator[Check]:
    """How far the peer's next-token laws are from float32, at every place of the tree."""
    places = list(tree.shown)
    own = box.own(places)
    if own is None:
        why = "it gives no logprobs" if not box.plain.capabilities.logprobs else "only at temperature 1"
        yield Check("law of a place against float32", "numerics", True, f"not seen: {why}")
        return
    with torch.inference_mode():
        ours = box.reference(places)
    worst = max(_apart(a, b) for a, b in zip(own, ours, strict=True))
    gap = max(abs(_log(a[t]) - _log(b[t])) for a, b in zip(own, ours, strict=True) for t in list(b)[:WIDTH] if t in a)
    box.note(numerics_tv=worst, numerics_logprob=gap)
    detail = f"{len(places)} places, total variation at most {worst:.1e}, log-probabilities of likely tokens {gap:.1e}"
    yield Check("law of a place against float32", "numerics", worst < NUMERICS, f"{detail} (alarm above {NUMERICS})")


def against(
    name: str, layer: str, counts: Counter[Hashable], law: dict[Hashable, float], whose: str, binding: bool, box: Box
) -> Check:
    """Exact tails against a law. Against the law of another precision the result is told, and not judged."""
    found, away, chance = fit(counts, law), distance(shares(counts), law), by_chance(law, counts.total())
    box.note(**{f"{layer}_tail": found.tail, f"{layer}_tv": away, f"{layer}_tv_by_chance": chance})
    detail = f"{found}; total variation {away:.3f}, by chance {chance:.3f}"
    note = "" if binding else "; told, not judged: another precision has another law"
    return Check(f"{name} against its {whose} law", layer, found.passed or not binding, detail + note)


def on_and_off(
    fast: Counter[Hashable], plain: Counter[Hashable], reference: dict[Hashable, float], drafted: int, box: Box
) -> Check:
    name = "speculation on against off"
    found = homogeneous(fast, plain)
    away = [distance(shares(counts), reference) for counts in (fast, plain)]
    box.note(chi_squared=found.chi_squared, chi_squared_p=found.chance, drafted=drafted)
    box.note(reference_tv_on=away[0], reference_tv_off=away[1])
    if not drafted:
        return Check(
            name, "sampled", False, "nothing was drafted, so nothing was tested; try another drafter or option"
        )
    detail = f"{drafted} tokens drafted; {found}; from float32 {away[0]:.3f} on, {away[1]:.3f} off"
    return Check(name, "sampled", found.passed, detail)


def greedy(box: Box, tokens: int = 32) -> Check:
    """Texts at temperature 0. Where they part, the gap in float32 between the two tokens says whether a tie flipped."""
    sides = [
        engine.generate([list(p) for p in box.prompts], Sampling(0), max_tokens=tokens)
        for engine in (box.fast, box.plain)
    ]
    for side in sides:
        check_done(side)
    gaps = [
        gap
        for prompt, a, b in zip(box.prompts, *sides, strict=True)
        if (gap := parting(box, prompt, a.token_ids, b.token_ids)) is not None
    ]
    limit = 2 * box.figures.get("numerics_logprob", 0.01)
    box.note(greedy_differ=len(gaps), greedy_gap=max(gaps, default=0.0), greedy_tau=_tau(sides[0]))
    detail = f"{len(box.prompts)} texts of {tokens} tokens, tau {_tau(sides[0]):.2f}; {len(gaps)} differ"
    if gaps:
        detail += f", at tokens {max(gaps):.1e} apart in log-probability (a tie below {limit:.1e})"
    return Check("temperature 0, speculation on and off", "replay", all(gap <= limit for gap in gaps), detail)


def parting(box: Box, prompt: Sequence[int], ours: Sequence[int], plain: Sequence[int]) -> float | None:
    """How far apart, in float32, the two tokens are at which the texts part; None where they are the same."""
    at = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), None)
    if at is None:
        return None if len(ours) == len(plain) else float("inf")
    pair = RealPair(box.model, NoDrafter(box.model.vocab), (), prompt)
    with torch.inference_mode():
        law = next_law(pair, [*prompt, *ours[:at]], Sampling(1.0))
    return abs(_log(float(law[ours[at]])) - _log(float(law[plain[at]])))


def seeds(box: Box, tokens: int = 16) -> Iterator[Check]:
    """One seed asked for twice must give one text; the same text without speculation is more than most promise. And no
    token of these texts may be one that the law all but excludes."""
    hows = [Sampling(box.temperature, seed=7 + i) for i in range(len(box.prompts))]
    prompts = [list(prompt) for prompt in box.prompts]
    first, again, off = (e.generate(prompts, hows, max_tokens=tokens) for e in (box.fast, box.fast, box.plain))
    for side in (first, again, off):
        check_done(side)
    yield excluded("no token that the law excludes, speculation on", [*first, *again], box)
    yield excluded("no token that the law excludes, speculation off", off, box)
    twice = sum(a.token_ids == b.token_ids for a, b in zip(first, again, strict=True))
    same = sum(a.token_ids == b.token_ids for a, b in zip(first, off, strict=True))
    box.note(seed_repeats=twice, seed_same_off=same, seed_texts=len(hows))
    detail = f"asked twice: {twice} of {len(hows)} texts the same; speculation off: {same} of {len(hows)}"
    promised = box.fast.capabilities.seed
    detail = detail if promised else f"{detail}; not promised"
    yield Check("one seed", "replay", twice == len(hows) or not promised, detail)


def excluded(name: str, done: Sequence[Completion], box: Box) -> Check:
    """The smallest surprise in float32. A peer's rounding moves it a little, a token of another law by many orders."""
    texts = [(box.prompts[i % len(box.prompts)], completion.token_ids) for i, completion in enumerate(done)]
    with torch.inference_mode():
        found = [s for prompt, tokens in texts for s in surprises(box.model, prompt, tokens, box.temperature)]
    least = min(found, default=1.0)
    corrected = min(1.0, least * len(found))
    box.note(**{f"least_surprise_{'off' if name.endswith('off') else 'on'}": least})
    detail = f"{len(found)} tokens, the least likely with those below it {least:.1e}, corrected {corrected:.1e}"
    return Check(name, "sampled", corrected >= ALARM, f"{detail} (alarm below {ALARM:.0e})")


def unseen(box: Box, law: dict[Hashable, float], samples: int) -> Check:
    """Every audit from outside has a resolution; a bias below it stays unseen."""
    chance = by_chance(law, samples)
    what = f"acceptance and residual probabilities, draws that are used twice, and what happens after {LENGTH} tokens"
    detail = f"a bias below a total variation of about {3 * chance:.2f} on these {len(law)} outcomes; {what}"
    return Check("not seen from outside", "outside", True, detail)


def _apart(own: dict[int, float], ours: dict[int, float]) -> float:
    """Total variation over what both tell, the rest as one token."""
    both = own.keys() & ours.keys()
    rest = abs(sum(own[t] for t in both) - sum(ours[t] for t in both))
    return (sum(abs(own[t] - ours[t]) for t in both) + rest) / 2


def _tau(done: Sequence[Completion]) -> float:
    cycles = sum(c.stats.cycles for c in done)
    return sum(c.stats.emitted for c in done) / cycles if cycles else 0.0


def _log(value: float) -> float:
    return math.log(max(value, 1e-30))
