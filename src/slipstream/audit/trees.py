"""Audits of rules for several candidates: their laws on trees, and how close they come to the best possible rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import cycle, product

from slipstream.audit.check import Check
from slipstream.audit.exact import check_cycles, check_endings
from slipstream.audit.fields import check_fields
from slipstream.audit.rational import ZERO, joint_deviation, laws
from slipstream.audit.rational import Row as Probs
from slipstream.audit.rational_tree import JUDGES, accepted, emitted, tree_cycle
from slipstream.audit.replay import check_replay
from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.transport import DRAWN, bound, optimum
from slipstream.core.interfaces import Policy
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.policy import Fixed

PAIR, FORK = Shape((-1, -1)), Shape((-1, -1, 0))
GROWN = Shape(nodes=3, width=2)
LARGE = Shape(nodes=8, width=3)
SHAPES = {"two candidates": PAIR, "a fork": FORK, "grown best-first": GROWN}


class Turns(Policy):
    """These budgets in turn."""

    def __init__(self, *budgets: Budget) -> None:
        self._budgets = cycle(budgets)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [next(self._budgets)] * len(rows)


class Restless(Policy):
    """Another shape every cycle, by what it has seen: chains, trees and plain decoding in turn."""

    def __init__(self) -> None:
        self._memory: dict[Row, int] = {}

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        menu = (Budget(1, shape=PAIR), Budget(1), Budget(2, shape=GROWN), Budget(0))
        return [menu[self._memory.get(row, 0) % len(menu)] for row in rows]

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        seen = [1] * len(rows)
        for (r, _), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
            seen[r] += token
        for row, tokens, count in zip(rows, seen, verdict.accepted.tolist(), strict=True):
            self._memory[row] = tokens + count


def audit_tree_rule(rule: str, pair: Pair, samples: int, shaped: Sampling) -> Iterator[Check]:
    """Every layer that can say something about a rule for several candidates. `shaped` asks for all there is."""
    subject = Subject(rules.get(rule), lambda: Fixed(3, shape=LARGE))
    if rule in JUDGES:
        yield check_slots(rule, pair)
        yield check_joint_tree(rule, pair)
        for name, shape in SHAPES.items():
            depth = shape.depth or 2
            turns = partial(Turns, Budget(depth, shape=shape), Budget(1, shape=PAIR))
            yield check_cycles(f"{rule}: two cycles, {name}", replace(subject, policy=turns), pair, depth)
        restless = replace(subject, policy=Restless)
        yield check_cycles(f"{rule}: two cycles, a shape that changes", restless, pair, 2)
        fork = shaping(subject, FORK, 2)
        warped = replace(fork, sampling=Sampling(temperature=0.7, top_k=2, top_p=0.9, min_p=0.05))
        yield check_cycles(f"{rule}: temperature, top-k, top-p, min-p on a fork", warped, pair, 2)
        everything = replace(shaping(subject, PAIR, 1), sampling=shaped)
        yield check_cycles(f"{rule}: penalties, bias, banned tokens, two candidates", everything, pair, 1)
        yield check_endings(f"{rule}: end token and limit on a fork", fork, pair, max_tokens=3)
    if rule == "greedy":
        greedy = replace(subject, sampling=Sampling(temperature=0))
        yield check_replay("greedy: same tokens as plain decoding, trees", greedy, pair, [1, 2, 4], shape=LARGE)
        return
    if rule == "coupled":
        yield check_fields("coupled: laid-out fields, chains and trees", subject, pair, {"chains": None, **SHAPES})
        yield check_replay("coupled: one seed, same tokens with trees", subject, pair, [1, 2, 4], shape=LARGE)
    some = max(1000, samples // 4)  # a row with a tree takes as long as several without
    yield check_sampled(f"{rule}: sampled continuations, trees of 8", subject, pair, some)


def shaping(subject: Subject, shape: Shape, depth: int) -> Subject:
    return replace(subject, policy=lambda: Fixed(depth, shape=shape))


def contexts(pair: Pair) -> Iterator[tuple[Probs, Probs]]:
    """p and q of every context."""
    target, draft = laws(pair.target), laws(pair.draft)
    for text in product(range(pair.target.vocab), repeat=pair.target.order):
        yield target(text), draft(text)


def check_slots(rule: str, pair: Pair, most: int = 3) -> Check:
    """At one slot, in every context and for 1 to `most` candidates: the token has law p; one more candidate never
    accepts less; no more is accepted than the optimum; and spectr keeps its published bound."""
    wrong, reached, best = 0, [ZERO] * most, [ZERO] * most
    count = pair.target.vocab**pair.target.order
    rounding = Fraction(1, 1000) if rule == "spectr" else ZERO  # its factor is rounded up
    for p, q in contexts(pair):
        before = ZERO
        for k in range(1, most + 1):
            got, limit = accepted(rule, p, q, k), optimum(p, DRAWN[rule](q, k))
            wrong += emitted(rule, p, q, k) != p
            wrong += not before - rounding <= got <= limit
            wrong += rule == "spectr" and got < bound(k) * limit - rounding
            before = got
            reached[k - 1] += got / count
            best[k - 1] += limit / count
    shares = [f"{k}: {float(a):.3f} of {float(b):.3f}" for k, (a, b) in enumerate(zip(reached, best, strict=True), 1)]
    return Check(f"{rule}: accepted beside the optimum", "rational", not wrong, f"by candidates {', '.join(shares)}")


def check_joint_tree(rule: str, pair: Pair) -> Check:
    deviation = joint_deviation(tree_cycle(rule, FORK.parents), pair)
    return Check(f"{rule}: joint law of two cycles on a fork", "rational", deviation == 0, f"deviation {deviation}")
