"""The audit of a loaded pair: its rows of p and q, its sampled continuations, its seeds.

Outside invariant mode, passes over one token and over many tokens round differently, so the target's law is known only
up to rounding. Continuations are then sampled without top-k, because rounding could change the set of kept tokens. If
two texts of one seed differ, the logits of that position are computed in several ways. A tie within rounding is
reported, anything else fails.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch

from slipstream.audit.check import Check, Planned, planned
from slipstream.audit.engines.continuations import Continuations, Path
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
from slipstream.drafters.none import NoDrafter, empty_draft
from slipstream.engines.agreement import Agreement
from slipstream.engines.native.compare import agreement
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed

TREE = Shape(nodes=8, width=3)
FORKS = Shape.levels([3, 2])  # for sampled continuations: several candidates at every position


@dataclass(frozen=True)
class RealPair:
    """A loaded target, a drafter for it, and token ids of prompts."""

    model: TorchModel
    drafter: Drafter
    prompts: Sequence[Sequence[int]]
    short: Sequence[int]  # a prompt of a few tokens, continued many times
    depth: int = 4
    shape: Shape = TREE  # of the drafts for rules that take several candidates

    def branches(self, rule: Verifier) -> bool:
        """Whether drafts have several candidates for a position."""
        return sibling_mode(rule, self.drafter) is not None

    def run(self, rows: Sequence[Row], rule: Verifier, depth: int, shape: Shape | None = None) -> None:
        drafter = self.drafter if depth else NoDrafter(self.model.vocab)
        shape = (shape or self.shape) if self.branches(rule) else None
        for _ in decode(rows, self.model, drafter, rule, Fixed(depth, shape=shape)):
            pass


class Recorder(Verifier):
    """Verifies as another rule does, and records the rows of p and q."""

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
    """Verifies as another rule does; counts drafted tokens, accepted ones, and those not first of their siblings."""

    name, lossless = "counted", True

    def __init__(self, rule: Verifier) -> None:
        self._rule, self.shared, self.siblings = rule, rule.shared, rule.siblings  # type: ignore[misc]
        self.drafted = self.accepted = self.later = 0

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        verdict = self._rule.verify(draft, target, noise)
        first = {nodes[0] for nodes in draft.tree.children if nodes}
        accepted = [node for path in verdict.path.tolist() for node in path if node >= 0]
        self.drafted += len(draft.tree)
        self.accepted += len(accepted)
        self.later += sum(node not in first for node in accepted)
        return verdict


def plan_real(pair: RealPair, names: Sequence[str], samples: int, temperature: float = 1.0) -> list[Planned[Check]]:
    """Rows and continuations under each rule, greedy identity, and seed replay where the rule promises it.

    The unit of cost is one pass of one row.
    """
    plan = []
    for name in names:
        rule = rules.get(name)()
        drafts = "trees" if pair.branches(rule) else "chains"
        if name == "greedy" or temperature == 0:
            title = f"{name}: same tokens as plain decoding, {drafts}"
            plan.append(planned(title, check_same_tokens, pair, rule, Sampling(temperature=0), cost=REPLAY_COST))
            continue
        if name in ("token", "block", "replace", "no_replace"):
            title = f"{name}: accepted + residual = p"
            plan.append(planned(title, check_recorded, pair, rule, Sampling(temperature, seed=1), cost=ROWS_COST))
        if name == "coupled":
            title = "coupled: one seed, same tokens"
            plan.append(planned(title, check_same_tokens, pair, rule, Sampling(temperature, seed=1), cost=REPLAY_COST))
        title = f"{name}: sampled continuations, {drafts}"
        cost = SAMPLE_COST * samples
        plan.append(planned(title, check_continuations, pair, rule, samples, temperature, cost=cost))
    return plan


REPLAY_COST, ROWS_COST, SAMPLE_COST = 500, 80, 8.0  # in passes of one row, measured with the default model


@torch.inference_mode()
def pass_seconds(pair: RealPair, passes: int = 12) -> float:
    """Seconds of one plain pass of one row: the median, without the prefill and the first passes."""
    row = Row(Request(pair.short, Sampling(temperature=0), passes))
    times = [time.perf_counter()]
    for _ in decode([row], pair.model, NoDrafter(pair.model.vocab), rules.get("greedy")(), Fixed(0)):
        times.append(time.perf_counter())
    seconds = [end - start for start, end in pairwise(times)]
    return median(seconds[3:] or seconds)


@torch.inference_mode()
def check_recorded(name: str, pair: RealPair, rule: Verifier, sampling: Sampling, tokens: int = 12) -> Check:
    """`check_rows` on the rows of p and q that the pair produces."""
    recorder = Recorder(rule)
    for prompt in pair.prompts:
        pair.run([Row(Request(prompt, sampling, tokens))], recorder, pair.depth)
    if not recorder.target:
        return Check(name, "rows", False, NOTHING_DRAFTED)
    return check_rows(name, torch.cat(recorder.target), Dense(torch.cat(recorder.draft).float()))


@torch.inference_mode()
def check_continuations(name: str, pair: RealPair, rule: Verifier, samples: int, temperature: float) -> Check:
    """Three tokens after a short prompt, many times, against their exact joint law under the target.

    If drafts may be trees, they branch at every position, so that later candidates are verified too.
    """
    texts: list[list[int]] = []
    counting = Counted(rule)
    shape = pair.shape if pair.shape.parents else FORKS
    sampling = Sampling(temperature, TOP if pair.model.invariant else 0)
    for start in range(0, samples, 128):
        seeds = range(start, min(samples, start + 128))
        rows = [Row(Request(pair.short, replace(sampling, seed=seed), LENGTH)) for seed in seeds]
        pair.run(rows, counting, LENGTH - 1, shape)
        texts += [row.output for row in rows]
    if not counting.drafted:
        return Check(name, "sampled", False, NOTHING_DRAFTED)
    result = fit(*outcomes(pair, texts, sampling))
    detail = f"{result}; {counting.drafted} tokens drafted, {counting.accepted} accepted"
    if pair.branches(rule):
        detail += f", {counting.later} of them not the first candidate"
    return Check(name, "sampled", result.passed, detail)


NOTHING_DRAFTED = "nothing was drafted, so nothing was tested; try another drafter"
LENGTH, TOP = 3, 4  # length of the counted continuations, and tokens that are distinguished at each position


def outcomes(
    pair: RealPair, texts: Sequence[Sequence[int]], sampling: Sampling
) -> tuple[Counter[Hashable], dict[Hashable, float]]:
    """The count of every continuation, and its probability."""

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
        logits = pair.model.score([row], empty_draft(1, pair.model.vocab)).logits
    finally:
        pair.model.close([row])
    return law_at(logits.double(), [(row, ())]).dense()[0].double()


@torch.inference_mode()
def check_same_tokens(name: str, pair: RealPair, rule: Verifier, sampling: Sampling, tokens: int = 32) -> Check:
    """Plain decoding against speculation at two depths, alone and in a batch."""
    requests = [Request(prompt, sampling, tokens) for prompt in pair.prompts]

    def texts(depth: int, together: bool) -> list[list[int]]:
        rows = [Row(request) for request in requests]
        for batch in [rows] if together else [[row] for row in rows]:
            pair.run(batch, rule, depth)
        return [row.output for row in rows]

    plain = texts(0, together=False)
    agreements = [
        agreement(pair.model, *compared)
        for depth in (1, pair.depth)
        for together in (False, True)
        for compared in zip(requests, texts(depth, together), plain, strict=True)
    ]
    apart = [each for each in agreements if not each.identical]
    detail = f"{len(requests)} prompts, {tokens} tokens, depths 1 and {pair.depth}, alone and batched"
    detail += f"; {len(apart)} of {len(agreements)} texts differ"
    if apart and not pair.model.invariant:
        return Check(name, "replay", not any(each.real for each in apart), f"{detail}{_why(apart)}")
    return Check(name, "replay", not apart, detail)


def _why(apart: Sequence[Agreement]) -> str:
    ties = [divergence for result in apart for divergence in result.divergences if divergence.tie]
    worst = next((each.real for each in apart if each.real), None)
    if worst is not None:
        return f", one at tokens {worst.gap:.1e} apart where ways to compute them differ by {worst.numerics:.1e}"
    wide = max(ties, key=lambda divergence: divergence.gap)
    return f", all at ties ({len(ties)}; the widest {wide.gap:.1e}, where ways to compute differ {wide.numerics:.1e})"
