"""Audits of rules for several candidates: their output laws on trees, and their acceptance beside the optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import cycle, product

from slipstream.audit.check import Check, Planned, planned
from slipstream.audit.rational.chain import ZERO, joint_deviation, laws
from slipstream.audit.rational.chain import Row as Probs
from slipstream.audit.rational.transport import DRAWN, bound, optimum
from slipstream.audit.rational.tree import JUDGES, accepted, emitted, tree_cycle
from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.costs import Costs
from slipstream.audit.tables.exact import check_cycles, check_endings
from slipstream.audit.tables.fixed_noise import check_fields
from slipstream.audit.tables.replay import check_replay
from slipstream.core.interfaces import Policy
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.policy.policies import Fixed

PAIR, FORK = Shape((-1, -1)), Shape((-1, -1, 0))
GROWN = Shape(nodes=3, width=2)
LARGE = Shape(nodes=8, width=3)
SHAPES = {"two candidates": PAIR, "a fork": FORK, "grown best-first": GROWN}


class Alternating(Policy):
    """Gives these budgets in turn."""

    def __init__(self, *budgets: Budget) -> None:
        self._budgets = cycle(budgets)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [next(self._budgets)] * len(rows)


class ChangingShape(Policy):
    """Chooses chains, trees or plain decoding by the tokens of the last draft, accepted or not."""

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


def plan_tree_rule(rule: str, pair: Pair, samples: int, shaped: Sampling, costs: Costs) -> Iterator[Planned[Check]]:
    """Plan every check that applies to a rule for several candidates. `shaped` uses all sampling parameters."""
    subject = Subject(rules.get(rule), lambda: Fixed(3, shape=LARGE))
    if rule in JUDGES:
        yield from _plan_tree_law(rule, subject, pair, shaped, costs)
    if rule == "greedy":
        greedy = replace(subject, sampling=Sampling(temperature=0))
        name = "greedy: same tokens as plain decoding, trees"
        yield planned(name, check_replay, greedy, pair, [1, 2, 4], shape=LARGE, cost=costs.replay)
        return
    if rule == "coupled":
        shapes = {"chains": None, **SHAPES}
        name = "coupled: the target's choice on fixed noise, chains and trees"
        yield planned(name, check_fields, subject, pair, shapes, cost=costs.exact)
        name = "coupled: one seed, same tokens with trees"
        yield planned(name, check_replay, subject, pair, [1, 2, 4], shape=LARGE, cost=costs.replay)
    rows = max(1000, samples // 4)  # a row with a tree takes as long as several without
    cost = 2 * costs.sampled(rows)
    yield planned(f"{rule}: sampled continuations, trees of 8", check_sampled, subject, pair, rows, cost=cost)


def _plan_tree_law(rule: str, subject: Subject, pair: Pair, shaped: Sampling, costs: Costs) -> Iterator[Planned[Check]]:
    """Enumerations of a rule whose candidates are drawn at random or chosen by rank."""
    cost = costs.exact * (6 if rule == "spectr" else 1)  # its factor is searched for at every slot
    yield planned(f"{rule}: accepted beside the optimum", check_slots, rule, pair, cost=cost / 2)
    yield planned(f"{rule}: joint law of two cycles on a fork", check_joint_tree, rule, pair, cost=cost / 2)
    for name, shape in SHAPES.items():
        depth = shape.depth or 2
        turns = replace(subject, policy=partial(Alternating, Budget(depth, shape=shape), Budget(1, shape=PAIR)))
        yield planned(f"{rule}: two cycles, {name}", check_cycles, turns, pair, depth, cost=cost)
    changing = replace(subject, policy=ChangingShape)
    yield planned(f"{rule}: two cycles, a shape that changes", check_cycles, changing, pair, 2, cost=cost)
    fork = shaping(subject, FORK, 2)
    warped = replace(fork, sampling=Sampling(temperature=0.7, top_k=2, top_p=0.9, min_p=0.05))
    name = f"{rule}: temperature, top-k, top-p, min-p on a fork"
    yield planned(name, check_cycles, warped, pair, 2, cost=cost / 4)
    everything = replace(shaping(subject, PAIR, 1), sampling=shaped)
    name = f"{rule}: penalties, bias, banned tokens, two candidates"
    yield planned(name, check_cycles, everything, pair, 1, cost=cost / 4)
    yield planned(f"{rule}: end token and limit on a fork", check_endings, fork, pair, max_tokens=3, cost=cost / 2)


def shaping(subject: Subject, shape: Shape, depth: int) -> Subject:
    return replace(subject, policy=lambda: Fixed(depth, shape=shape))


def contexts(pair: Pair) -> Iterator[tuple[Probs, Probs]]:
    """p and q of every context."""
    target, draft = laws(pair.target), laws(pair.draft)
    for text in product(range(pair.target.vocab), repeat=pair.target.order):
        yield target(text), draft(text)


def check_slots(name: str, rule: str, pair: Pair, most: int = 3) -> Check:
    """At one slot, in every context, for 1 to `most` candidates: the token has law p, one more candidate never lowers
    acceptance, acceptance stays at or below the optimum, and spectr keeps its published bound."""
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
    return Check(name, "rational", not wrong, f"by candidates {', '.join(shares)}")


def check_joint_tree(name: str, rule: str, pair: Pair) -> Check:
    """The rule's joint law over two cycles on a fork against the target's."""
    deviation = joint_deviation(tree_cycle(rule, FORK.parents), pair)
    return Check(name, "rational", deviation == 0, f"deviation {deviation}")
