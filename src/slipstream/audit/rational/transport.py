"""The largest acceptance that any exact rule can reach, by linear programming.

A rule with candidates x_1 … x_k of law Q that keeps the target's law p is a transport of Q's mass to tokens. Mass that
lands on one of its own candidates is accepted. The best rule is a linear program: a maximal flow from tuples of
candidates to their tokens, where token x receives at most p(x). Its dual is a minimal cut over all sets S of tokens,

    optimum = min_S  p(S) + Q(some candidate lies outside S),

which is found on a small vocabulary by trying every S in exact fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, permutations, product

from slipstream.audit.rational.chain import ONE, ZERO, Row, normal

Candidates = tuple[int, ...]
Law = dict[Candidates, Fraction]


def independent(q: Row, count: int) -> Law:
    """k draws with replacement, in order."""
    return {xs: p for xs in product(range(len(q)), repeat=count) if (p := _all(q[x] for x in xs))}


def distinct(q: Row, count: int) -> Law:
    """k draws without replacement, in order; fewer where no more are possible."""
    possible = [x for x in range(len(q)) if q[x]]
    law: Law = {}
    for xs in permutations(possible, min(count, len(possible))):
        law[xs] = _all(without(q, xs[:i])[x] for i, x in enumerate(xs))
    return law


def chosen(q: Row, count: int) -> Law:
    """The k likeliest, the lowest ids among equals."""
    ranked = sorted((x for x in range(len(q)) if q[x]), key=lambda x: (-q[x], x))
    return {tuple(ranked[:count]): ONE}


def without(q: Row, xs: Sequence[int]) -> Row:
    return normal([ZERO if x in xs else p for x, p in enumerate(q)])


DRAWN: dict[str, Callable[[Row, int], Law]] = {
    "chosen": chosen,
    "replace": independent,
    "no_replace": distinct,
    "spectr": independent,
}


def optimum(p: Row, law: Law) -> Fraction:
    """The largest probability with which any rule that keeps p can accept one of the candidates."""
    return min(
        sum((p[x] for x in inside), ZERO) + sum((mass for xs, mass in law.items() if not inside.issuperset(xs)), ZERO)
        for inside in map(frozenset, _subsets(len(p)))
    )


def _subsets(size: int) -> Iterator[tuple[int, ...]]:
    return (subset for count in range(size + 1) for subset in combinations(range(size), count))


def _all(chances: Iterator[Fraction]) -> Fraction:
    result = ONE
    for chance in chances:
        result *= chance
    return result


def bound(count: int) -> Fraction:
    """The share of the optimum that k-sequential selection is proved to reach (arXiv 2310.15141, theorem 3)."""
    return 1 - (1 - Fraction(1, count)) ** count
