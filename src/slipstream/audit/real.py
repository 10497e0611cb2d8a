"""The audit on a real pair: its own rows of p and q, its own continuations, its own seeds.

Outside invariant mode a pass over one token and one over many round differently, so the target's law is known up to
that. Continuations are then drawn without a cut, whose edge rounding would move, and where texts of one seed part, the
place is computed again in several ways: a flipped tie is told, anything else fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.audit.check import Check
from slipstream.audit.continuations import Continuations, Path
from slipstream.audit.statistical import check_rows, fit
from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import Drafter, Verifier, sibling_mode
from slipstream.core.law import Dense, Law
from slipstream.core.loop import decode
from slipstream.core.noise import Noise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import law_at
from slipstream.core.tree import Shape
from slipstream.core.types import Draft, Request, Row, Verdict
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.compare import Agreement, agreement
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy import Fixed

TREE = Shape(nodes=8, width=3)
FORKS = Shape.levels([3, 2])  # where continuations are counted: candidates after every place, also where they are drawn


@dataclass(frozen=True)
class RealPair:
    """A loaded target, something that drafts for it, and token ids of prompts to try them on."""

    model: TorchModel
    drafter: Drafter
    prompts: Sequence[Sequence[int]]
    short: Sequence[int]  # a few tokens, continued many times at once
    depth: int = 4
    shape: Shape = TREE  # of the drafts for rules that take several candidates

    def branches(self, rule: Verifier) -> bool:
        """Whether drafts have several candidates for a place."""
        return sibling_mode(rule, self.drafter) is not None and self.model.branches

    def run(self, rows: Sequence[Row], rule: Verifier, depth: int, shape: Shape | None = None) -> None:
        drafter = self.drafter if depth else NoDrafter(self.model.vocab)
        shape = (shape or self.shape) if self.branches(rule) else None
        for _ in decode(rows, self.model, drafter, rule, Fixed(depth, shape=shape)):
            pass


class Recorder(Verifier):
    """Verifies as another rule does and keeps the rows of p and q it saw."""

    name, lossless = "recorder", True

    def __init__(self, rule: Verifier) -> None:
        self._rule, self.shared, self.siblings = rule, rule.shared, rule.siblings  # type: ignore[misc]
        self.target: list[Tensor] = []
        self.draft: list[Tensor] = []

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if len(draft.tree):
            self.target.append(target.select(draft.tree.origin).dense())
            self.draft.append(draft.law.dense())
        return self._rule.verify(draft, target, noise)


class Counted(Verifier):
    """Verifies as another rule does and counts accepted tokens that were not the first candidate for their place."""

    name, lossless = "counted", True

    def __init__(self, rule: Verifier) -> None:
        self._rule, self.shared, self.siblings = rule, rule.shared, rule.siblings  # type: ignore[misc]
        self.later = 0

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        verdict = self._rule.verify(draft, target, noise)
        first = {line[0] for line in draft.tree.children if line}
        self.later += sum(node >= 0 and node not in first for line in verdict.path.tolist() for node in line)
        return verdict


def audit_real(pair: RealPair, names: Sequence[str], samples: int, temperature: float = 1.0) -> Iterator[Check]:
    """Rows and continuations under each rule, greedy identity, and seed replay where the rule promises it."""
    with torch.inference_mode():
        for name in names:
            rule = rules.get(name)()
            what = "trees" if pair.branches(rule) else "chains"
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
    """Three tokens after a short prompt, many times, against their exact joint law under the target. Where drafts may
    branch they do at every place, so that second and later candidates are judged too."""
    texts: list[list[int]] = []
    watched = Counted(rule)
    shape = pair.shape if pair.shape.parents else FORKS
    sampling = Sampling(temperature, TOP if pair.model.invariant else 0)
    for start in range(0, samples, 128):
        seeds = range(start, min(samples, start + 128))
        rows = [Row(Request(pair.short, replace(sampling, seed=seed), LENGTH)) for seed in seeds]
        pair.run(rows, watched, LENGTH - 1, shape)
        texts += [row.output for row in rows]
    found = fit(*outcomes(pair, texts, sampling))
    later = f"; {watched.later} accepted tokens were not the first candidate" if pair.branches(rule) else ""
    return Check(name, "sampled", found.passed, f"{found}{later}")


LENGTH, TOP = 3, 4  # of the continuations that are counted, and the tokens that are told apart at each place


def outcomes(
    pair: RealPair, texts: Sequence[Sequence[int]], sampling: Sampling
) -> tuple[Counter[Hashable], dict[Hashable, float]]:
    """How often every continuation was seen, and its probability."""

    def laws(paths: Sequence[Path]) -> list[dict[int, float]]:
        best = [next_law(pair, [*pair.short, *path], sampling).topk(TOP) for path in paths]
        return [dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)) for top in best]

    tree = Continuations.of(laws, frozenset(), LENGTH, TOP)
    law = tree.joint(laws)
    assert law is not None, "the model knows its law everywhere"
    return tree.count(texts), law


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
    requests = [Request(prompt, sampling, tokens) for prompt in pair.prompts]

    def texts(depth: int, together: bool) -> list[list[int]]:
        rows = [Row(request) for request in requests]
        for batch in [rows] if together else [[row] for row in rows]:
            pair.run(batch, rule, depth)
        return [row.output for row in rows]

    plain = texts(0, together=False)
    found = [
        agreement(pair.model, *texts_of_one)
        for depth in (1, pair.depth)
        for together in (False, True)
        for texts_of_one in zip(requests, texts(depth, together), plain, strict=True)
    ]
    apart = [each for each in found if not each.identical]
    detail = f"{len(requests)} prompts, {tokens} tokens, depths 1 and {pair.depth}, alone and batched"
    detail += f"; {len(apart)} of {len(found)} texts differ"
    if apart and not pair.model.invariant:
        return Check(name, "replay", not any(each.real for each in apart), f"{detail}{_why(apart)}")
    return Check(name, "replay", not apart, detail)


def _why(apart: Sequence[Agreement]) -> str:
    ties = [parting for each in apart for parting in each.partings if parting.tie]
    worst = next((each.real for each in apart if each.real), None)
    if worst is not None:
        return f", one at tokens {worst.gap:.1e} apart where ways to compute them differ by {worst.numerics:.1e}"
    wide = max(ties, key=lambda parting: parting.gap)
    return f", all at ties ({len(ties)}; the widest {wide.gap:.1e}, where ways to compute differ {wide.numerics:.1e})"
