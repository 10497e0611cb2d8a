"""The output laws of the rules in exact fractions, written a second time from the papers.

Nothing here is shared with the shipped rules, which must agree with it. A cycle is the law of (accepted count, emitted
tokens). Two cycles, continued by the target itself, must give exactly the target's joint law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise, product

from slipstream.audit.check import Check
from slipstream.audit.subject import Pair
from slipstream.models.run.table_model import Table

Text = tuple[int, ...]
Row = list[Fraction]
Laws = Callable[[Text], Row]
Cycle = dict[tuple[int, Text], Fraction]
CycleLaw = Callable[[Laws, Laws, Text, int], Cycle]
ONE, ZERO = Fraction(1), Fraction(0)


def laws(table: Table) -> Laws:
    """The table as fractions: every entry is the nearest one with a small denominator, rows rescaled to sum to 1."""
    rows = [[Fraction(p).limit_denominator(10**6) for p in row] for row in table.probs.tolist()]
    rows = [[p / sum(row) for p in row] for row in rows]
    return lambda text: rows[table.context(text)]


def drafts(draft: Laws, start: Text, depth: int) -> Iterator[tuple[Text, Fraction]]:
    """Every draft of `depth` tokens and its probability."""
    for text in product(range(len(draft(start))), repeat=depth):
        probability = ONE
        for i, token in enumerate(text):
            probability *= draft(start + text[:i])[token]
        if probability:
            yield text, probability


def normal(weights: Row) -> Row:
    total = sum(weights)
    return [w / total for w in weights] if total else weights


def excess(weight: Fraction, p: Row, q: Row) -> Row:
    return [max(weight * a - b, ZERO) for a, b in zip(p, q, strict=True)]


def token_cycle(target: Laws, draft: Laws, start: Text, depth: int) -> Cycle:
    """arXiv 2302.01318, algorithm 2."""
    law: Cycle = defaultdict(Fraction)
    for text, mass in drafts(draft, start, depth):
        for i, token in enumerate(text):
            p, q = target(start + text[:i]), draft(start + text[:i])
            accept = min(ONE, p[token] / q[token])
            for other, r in enumerate(normal(excess(ONE, p, q))):
                law[i, (*text[:i], other)] += mass * (1 - accept) * r
            mass *= accept
        for other, p_other in enumerate(target(start + text)):
            law[depth, (*text, other)] += mass * p_other
    return law


def block_cycle(target: Laws, draft: Laws, start: Text, depth: int) -> Cycle:
    """arXiv 2403.10444, algorithm 2: the longest prefix that its own acceptance test keeps."""
    law: Cycle = defaultdict(Fraction)
    for text, mass in drafts(draft, start, depth):
        weights = [ONE]
        for i, token in enumerate(text):
            weights.append(min(ONE, weights[-1] * target(start + text[:i])[token] / draft(start + text[:i])[token]))
        for i in range(depth, -1, -1):
            p = target(start + text[:i])
            left = excess(weights[i], p, draft(start + text[:i])) if i < depth else p
            surplus = sum(left)
            total = surplus + 1 - weights[i]
            keep = ONE if i == 0 else weights[depth] if i == depth else surplus / total if total else ZERO
            for other, r in enumerate(normal(left)):
                law[i, (*text[:i], other)] += mass * keep * r
            mass *= 1 - keep
    return law


def coupled_joint(p: Row, q: Row) -> dict[tuple[int, int], Fraction]:
    """P(argmin E/q = a, argmin E/p = b) of one exponential per token, in closed form.

    For a = b = x it is 1 / sum_y max(p_y/p_x, q_y/q_x). For a != b, with r the ratio of the two winning times, it is
    q_a p_b times the integral of dr / C(r)^2, C(r) = sum_y max(q_y r, p_y), from p_a/q_a to p_b/q_b where that is
    positive; C is linear between the points p_y/q_y.
    """
    joint: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    both = [x for x in range(len(p)) if p[x] and q[x]]
    for x in both:
        joint[x, x] = 1 / sum((max(a / p[x], b / q[x]) for a, b in zip(p, q, strict=True)), ZERO)
    bends = sorted({p[y] / q[y] for y in range(len(p)) if q[y]})
    for a in (x for x in range(len(p)) if q[x]):
        for b in (x for x in range(len(p)) if p[x] and x != a):
            low = p[a] / q[a]
            high = p[b] / q[b] if q[b] else None  # b can never win the draft's race: no upper limit
            joint[a, b] = q[a] * p[b] * _integral(p, q, low, high, bends)
    return joint


def _integral(p: Row, q: Row, low: Fraction, high: Fraction | None, bends: Sequence[Fraction]) -> Fraction:
    """Integral of dr / C(r)^2; between bends C(r) = s r + t, and the antiderivative gives (r2-r1) / (C(r1) C(r2))."""
    if high is not None and high <= low:
        return ZERO

    def c(r: Fraction) -> Fraction:
        return sum((max(b * r, a) for a, b in zip(p, q, strict=True)), ZERO)

    points = [low, *(x for x in bends if x > low and (high is None or x < high))]
    points += [high] if high is not None else []
    total = sum(((r2 - r1) / (c(r1) * c(r2)) for r1, r2 in pairwise(points)), ZERO)
    if high is None:  # beyond the last bend C(r) = sum(q) r + (p where q = 0), to infinity: 1 / (slope * C)
        total += 1 / (sum(q) * c(points[-1]))
    return total


CYCLES: dict[str, CycleLaw] = {"token": token_cycle, "block": block_cycle}


def joint_deviation(cycle: CycleLaw, pair: Pair, depth: int = 2, cycles: int = 2) -> Fraction:
    """Largest difference between the target's joint law and the rule's over whole cycles; 0 is the theorem."""
    target, draft = laws(pair.target), laws(pair.draft)
    emitted_law: dict[Text, Fraction] = {(): ONE}
    for _ in range(cycles):
        after: dict[Text, Fraction] = defaultdict(Fraction)
        for text, mass in emitted_law.items():
            for (_, emitted), probability in cycle(target, draft, pair.prompt + text, depth).items():
                after[text + emitted] += mass * probability
        emitted_law = after
    worst = ZERO
    for text in product(range(pair.target.vocab), repeat=cycles * (depth + 1)):
        got, rest = ZERO, ONE  # probability of the text so far, and the target's probability of the remaining tokens
        for i in range(len(text), 0, -1):
            got += emitted_law.get(text[:i], ZERO) * rest
            rest *= target(pair.prompt + text[: i - 1])[text[i - 1]]
        worst = max(worst, abs(rest - got))
    return worst


def expected_accepted(rule: str, pair: Pair, start: Text, depth: int) -> Fraction:
    cycle = CYCLES[rule](laws(pair.target), laws(pair.draft), start, depth)
    return sum((accepted * probability for (accepted, _), probability in cycle.items()), ZERO)


def check_joint(name: str, rule: str, pair: Pair) -> Check:
    """The rule's joint law over two cycles against the target's."""
    deviation = joint_deviation(CYCLES[rule], pair)
    return Check(name, "rational", deviation == 0, f"deviation {deviation}")


def check_block_accepts_more(name: str, pair: Pair, depth: int = 3) -> Check:
    token, block = (expected_accepted(rule, pair, pair.prompt, depth) for rule in ("token", "block"))
    detail = f"expected accepted of {depth}: block {float(block):.4f}, token {float(token):.4f}"
    return Check(name, "rational", block >= token, detail)


def check_coupled(name: str, pair: Pair) -> Check:
    """The race on a shared field has both laws as its marginals, and matches at least (1 - TV) / (1 + TV)."""
    wrong = 0
    least = ONE
    for context in product(range(pair.target.vocab), repeat=pair.target.order):
        p, q = laws(pair.target)(context), laws(pair.draft)(context)
        joint = coupled_joint(p, q)
        for x in range(len(p)):
            wrong += sum((joint[a, x] for a in range(len(p))), ZERO) != p[x]
            wrong += sum((joint[x, b] for b in range(len(p))), ZERO) != q[x]
        distance = sum((abs(a - b) for a, b in zip(p, q, strict=True)), ZERO) / 2
        match = sum((joint[x, x] for x in range(len(p))), ZERO)
        wrong += match < (1 - distance) / (1 + distance)
        least = min(least, match)
    detail = f"marginals equal p and q in every context; lowest match probability {float(least):.3f}"
    return Check(name, "rational", wrong == 0, detail)
