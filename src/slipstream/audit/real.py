"""The audit on a real pair: its own rows of p and q, its own continuations, its own seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch

from slipstream.audit.check import Check
from slipstream.audit.statistical import check_rows, fit
from slipstream.core.interfaces import Drafter, Model, Verifier, way
from slipstream.core.law import Dense, Law
from slipstream.core.loop import decode
from slipstream.core.noise import Noise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.shapes import Float, Tensor
from slipstream.core.shaping import law_at
from slipstream.core.tree import Shape
from slipstream.core.types import Draft, Request, Row, Verdict
from slipstream.drafters.none import NoDrafter
from slipstream.plan.policy import Fixed

TREE = Shape(nodes=8, width=3)


@dataclass(frozen=True)
class RealPair:
    """A loaded target, something that drafts for it, and token ids of prompts to try them on."""

    model: Model
    drafter: Drafter
    prompts: Sequence[Sequence[int]]
    short: Sequence[int]  # a few tokens, continued many times at once
    depth: int = 4
    shape: Shape = TREE  # of the drafts for rules that take several candidates

    def run(self, rows: Sequence[Row], rule: Verifier, depth: int) -> None:
        drafter = self.drafter if depth else NoDrafter(self.model.vocab)
        shape = self.shape if way(rule, self.drafter) else None
        for _ in decode(rows, self.model, drafter, rule, Fixed(depth, shape=shape)):
            pass


class Recorder(Verifier):
    """Verifies as another rule does and keeps the rows of p and q it saw."""

    name, lossless = "recorder", True

    def __init__(self, rule: Verifier) -> None:
        self._rule, self.shared = rule, rule.shared  # type: ignore[misc]
        self.target: list[Tensor] = []
        self.draft: list[Tensor] = []

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if len(draft.tree):
            self.target.append(target.select(draft.tree.origin).dense())
            self.draft.append(draft.law.dense())
        return self._rule.verify(draft, target, noise)


def audit_real(pair: RealPair, names: Sequence[str], samples: int, temperature: float = 1.0) -> Iterator[Check]:
    """Rows and continuations under each rule, greedy identity, and seed replay where the rule promises it."""
    with torch.inference_mode():
        for name in names:
            rule = rules.get(name)()
            what = "trees" if way(rule, pair.drafter) else "chains"
            if name == "greedy" or temperature == 0:
                yield replayed(f"{name}: same tokens as plain decoding, {what}", pair, rule, Sampling(temperature=0))
                continue
            if name in ("token", "block", "replace", "no_replace"):
                yield captured(f"{name}: accepted + residual = p", pair, rule, Sampling(temperature, seed=1))
            if name == "coupled":
                yield replayed("coupled: one seed, same tokens", pair, rule, Sampling(temperature, seed=1))
            yield continued(f"{name}: sampled continuations, {what}", pair, rule, samples, temperature)


def captured(name: str, pair: RealPair, rule: Verifier, sampling: Sampling, tokens: int = 12) -> Check:
    recorder = Recorder(rule)
    for prompt in pair.prompts:
        pair.run([Row(Request(prompt, sampling, tokens))], recorder, pair.depth)
    if not recorder.target:
        return Check(name, "rows", True, "the drafter proposed nothing on these prompts")
    return check_rows(name, torch.cat(recorder.target), Dense(torch.cat(recorder.draft).float()))


def continued(name: str, pair: RealPair, rule: Verifier, samples: int, temperature: float) -> Check:
    """Two tokens after a short prompt, many times, against their exact joint law under the target."""
    sampling = Sampling(temperature, top_k=8)
    counts: Counter[Hashable] = Counter()
    for start in range(0, samples, 128):
        seeds = range(start, min(samples, start + 128))
        rows = [Row(Request(pair.short, Sampling(temperature, 8, seed=seed), 2)) for seed in seeds]
        pair.run(rows, rule, 1)
        counts.update(tuple(row.output) for row in rows)
    found = fit(counts, joint_of_two(pair, sampling))
    return Check(name, "sampled", found.passed, str(found))


def joint_of_two(pair: RealPair, sampling: Sampling) -> dict[Hashable, float]:
    first = next_law(pair, [*pair.short], sampling)
    joint: dict[Hashable, float] = {}
    for token in first.nonzero()[:, 0].tolist():
        second = next_law(pair, [*pair.short, token], sampling)
        for other in second.nonzero()[:, 0].tolist():
            joint[token, other] = float(first[token] * second[other])
    return joint


def next_law(pair: RealPair, tokens: Sequence[int], sampling: Sampling) -> Float[Tensor, " vocab"]:
    """The target's law after these tokens, from a pass of its own."""
    row = Row(Request(tokens, sampling, 1))
    pair.model.open([row])
    try:
        nothing = NoDrafter(pair.model.vocab).propose([row], [], _NoNoise())
        logits = pair.model.score([row], nothing).logits
    finally:
        pair.model.close([row])
    return law_at(logits.double(), [(row, ())]).dense()[0].double()


class _NoNoise(Noise):
    """For a pass in which nothing is drawn."""

    def flip(self, *_: object, **__: object) -> Tensor:
        raise AssertionError("nothing is drawn here")

    draw = flip


def replayed(name: str, pair: RealPair, rule: Verifier, sampling: Sampling, tokens: int = 32) -> Check:
    """Plain decoding against speculation at two depths, alone and in a batch."""

    def texts(depth: int, together: bool) -> list[list[int]]:
        rows = [Row(Request(prompt, sampling, tokens)) for prompt in pair.prompts]
        for batch in [rows] if together else [[row] for row in rows]:
            pair.run(batch, rule, depth)
        return [row.output for row in rows]

    plain = texts(0, together=False)
    others = [(depth, together) for depth in (1, pair.depth) for together in (False, True)]
    apart = sum(a != b for other in others for a, b in zip(texts(*other), plain, strict=True))
    detail = f"{len(pair.prompts)} prompts, {tokens} tokens, depths 1 and {pair.depth}, alone and batched"
    return Check(name, "replay", apart == 0, f"{detail}; {apart} of {len(others) * len(plain)} texts differ")
