"""The output laws of the tree rules in exact fractions, written a second time from the papers.

At a slot a rule accepts each candidate with some probability, and has a law for the token if it accepts none. A cycle
drafts a tree of a given shape. Two cycles, continued by the target itself, must give exactly the target's joint law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

from slipstream.audit.rational.chain import ONE, ZERO, Cycle, Laws, Row, Text, excess, normal
from slipstream.audit.rational.transport import DRAWN, Candidates, without

Judged = tuple[list[Fraction], Row]
"""The probability that each candidate is the accepted one, and the unnormalised law of the token if none is."""


def one_by_one(p: Row, laws: Sequence[Row], xs: Candidates) -> Judged:
    """Verify candidates in turn against the residual of p; each has the law it was drawn from given those before."""
    residual, mass, taken = p, ONE, []
    for q, x in zip(laws, xs, strict=True):
        accept = min(ONE, residual[x] / q[x])
        taken.append(mass * accept)
        mass *= 1 - accept
        residual = normal(excess(ONE, residual, q))
    return taken, [mass * r for r in residual]


def judge_chosen(p: Row, q: Row, xs: Candidates) -> Judged:
    return one_by_one(p, [[ONE if y == x else ZERO for y in range(len(p))] for x in xs], xs)


def judge_replace(p: Row, q: Row, xs: Candidates) -> Judged:
    return one_by_one(p, [q] * len(xs), xs)


def judge_no_replace(p: Row, q: Row, xs: Candidates) -> Judged:
    return one_by_one(p, [without(q, xs[:i]) for i in range(len(xs))], xs)


def judge_spectr(p: Row, q: Row, xs: Candidates) -> Judged:
    """arXiv 2310.15141, algorithm 3, with a factor at or above the smallest valid one."""
    rho = factor(p, q, len(xs))
    both = [min(a / rho, b) for a, b in zip(p, q, strict=True)]
    b = sum(both, ZERO)
    mass, taken = ONE, []
    for x in xs:
        accept = min(ONE, p[x] / (rho * q[x]))
        taken.append(mass * accept)
        mass *= 1 - accept
    g = gain(b, len(xs))
    residual = normal([a - g * c for a, c in zip(p, both, strict=True)])
    assert min(residual) >= 0, "the factor is too small"
    return taken, [mass * r for r in residual]


def gain(b: Fraction, count: int) -> Fraction:
    return (1 - (1 - b) ** count) / b if b else Fraction(count)


def factor(p: Row, q: Row, count: int, halvings: int = 12) -> Fraction:
    low, high = ONE, Fraction(count)
    for _ in range(halvings):
        middle = (low + high) / 2
        b = sum((min(a / middle, c) for a, c in zip(p, q, strict=True)), ZERO)
        low, high = (low, middle) if gain(b, count) <= middle else (middle, high)
    return high


JUDGES: dict[str, Callable[[Row, Row, Candidates], Judged]] = {
    "chosen": judge_chosen,
    "replace": judge_replace,
    "no_replace": judge_no_replace,
    "spectr": judge_spectr,
}


def accepted(rule: str, p: Row, q: Row, count: int) -> Fraction:
    """The probability that one of `count` candidates is accepted."""
    law = DRAWN[rule](q, count)
    return sum((mass * sum(JUDGES[rule](p, q, xs)[0], ZERO) for xs, mass in law.items()), ZERO)


def emitted(rule: str, p: Row, q: Row, count: int) -> Row:
    """The law of the token emitted at a slot, accepted or not. It is p if the rule is right."""
    law = [ZERO] * len(p)
    for xs, mass in DRAWN[rule](q, count).items():
        taken, rest = JUDGES[rule](p, q, xs)
        for x, chance in zip(xs, taken, strict=True):
            law[x] += mass * chance
        for x, chance in enumerate(rest):
            law[x] += mass * chance
    return law


def tree_cycle(rule: str, parents: Sequence[int]) -> Callable[[Laws, Laws, Text, int], Cycle]:
    """A cycle of a rule on a static shape, as the law of (accepted count, emitted tokens)."""
    children: dict[int, list[int]] = defaultdict(list)
    for i, parent in enumerate(parents):
        children[parent].append(i)

    def cycle(target: Laws, draft: Laws, start: Text, depth: int) -> Cycle:
        law: Cycle = defaultdict(Fraction)
        _from(rule, children, children[-1], target, draft, start, (), ONE, law)
        return law

    return cycle


def _from(
    rule: str, children: dict[int, list[int]], due: list[int], target: Laws, draft: Laws, start: Text, path: Text,
    mass: Fraction, law: Cycle,
) -> None:  # fmt: skip
    """Add all outcomes from one slot on, whose candidates fill the nodes `due`. The children of an accepted candidate
    were drawn independently of its siblings. A token drawn twice has the children of both nodes."""
    p, q = target(start + path), draft(start + path)
    if not due:
        for x, chance in enumerate(p):
            law[len(path), (*path, x)] += mass * chance
        return
    for xs, probability in DRAWN[rule](q, len(due)).items():
        taken, rest = JUDGES[rule](p, q, xs)
        for x, chance in enumerate(rest):
            law[len(path), (*path, x)] += mass * probability * chance
        for x, chance in zip(xs, taken, strict=True):
            if chance:
                nodes = [child for y, node in zip(xs, due, strict=False) if y == x for child in children[node]]
                after = (*path, x)
                _from(rule, children, nodes, target, draft, start, after, mass * probability * chance, law)
