"""The declared laws of the lossy rules, written a second time from the papers. Numbers may be fractions or floats.

- A cascade declares one law per position, a mixture of p and q (`MIXTURES`). Its joint law over whole cycles must be
  exactly the product of those, at any depth.
- The other rules declare the law of a whole cycle at a fixed depth (`PROCESSES`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

from slipstream.audit.check import Check
from slipstream.audit.rational.chain import CycleLaw, laws, normal
from slipstream.audit.subject import Pair

Numbers = list[Any]
Text = tuple[int, ...]
Laws = Callable[[Text], Numbers]
Mixture = Callable[[Numbers, Numbers], Numbers]
CycleOutcomes = dict[tuple[int, Text], Any]


def chow(p: Numbers, q: Numbers, alpha: Any) -> Numbers:
    return q if max(q) >= 1 - alpha else p


def difference(p: Numbers, q: Numbers, alpha: Any) -> Numbers:
    return q if max(q) >= max(p) - alpha else p


def total_variation(p: Numbers, q: Numbers, alpha: Any) -> Numbers:
    distance = sum(max(a - b, 0) for a, b in zip(p, q, strict=True))
    return q if max(q) >= max(p) - alpha * distance else p


def token_specific(p: Numbers, q: Numbers, alpha: Any) -> Numbers:
    bad = [a < (1 - alpha) * max(p) for a in p]
    moved = sum(b for b, wrong in zip(q, bad, strict=True) if wrong)
    return [(0 if wrong else b) + a * moved for a, b, wrong in zip(p, q, bad, strict=True)]


MIXTURES: Mapping[str, Callable[[Numbers, Numbers, Any], Numbers]] = {
    "cascade_chow": chow,
    "cascade_difference": difference,
    "cascade_tv": total_variation,
    "cascade_token": token_specific,
}


def mixture_of(rule: str, alpha: Any) -> Mixture:
    """The declared law of a cascade with its parameter."""
    law = MIXTURES[rule]
    return lambda p, q: law(p, q, alpha)


def largest(row: Numbers) -> Numbers:
    """All probability on the largest entry."""
    best = row.index(max(row))
    return [1 if token == best else 0 for token in range(len(row))]


def cascade_cycle(mixture: Mixture, target: Laws, draft: Laws, start: Text, depth: int) -> CycleOutcomes:
    """Accept x with min(1, pi(x) / q(x)); at a rejection draw from max(pi - q, 0). There is no bonus token."""
    law: CycleOutcomes = defaultdict(int)
    for text, mass in _drafts(draft, start, depth):
        for i, token in enumerate(text):
            q = draft(start + text[:i])
            pi = mixture(target(start + text[:i]), q)
            accept = min(1, pi[token] / q[token])
            for other, r in enumerate(normal([max(a - b, 0) for a, b in zip(pi, q, strict=True)])):
                law[i, (*text[:i], other)] += mass * (1 - accept) * r
            mass *= accept
        law[depth, text] += mass
    return law


def accepting_cycle(
    accepts: Callable[[Numbers, Numbers, int], Any],
    target: Laws,
    draft: Laws,
    start: Text,
    depth: int,
    fallback: float = 0.0,
    residual: bool = False,
    argmax: bool = False,
) -> CycleOutcomes:
    """Accept each token with a probability of its own; then a token of the target, or of the residual."""
    law: CycleOutcomes = defaultdict(int)
    draw = largest if argmax else list
    for text, mass in _drafts(lambda context: draw(draft(context)), start, depth, draft, fallback):
        for i, token in enumerate(text):
            p, q = target(start + text[:i]), draft(start + text[:i])
            accept = accepts(p, q, token)
            left = normal([max(a - b, 0) for a, b in zip(p, q, strict=True)]) if residual and not argmax else p
            for other, r in enumerate(draw(left)):
                law[i, (*text[:i], other)] += mass * (1 - accept) * r
            mass *= accept
        for other, a in enumerate(draw(target(start + text))):
            law[len(text), (*text, other)] += mass * a
    return {outcome: mass for outcome, mass in law.items() if mass}


def _drafts(
    draw: Laws, start: Text, depth: int, draft: Laws | None = None, fallback: float = 0.0
) -> Iterator[tuple[Text, Any]]:
    """Every draft and its probability. It ends early where the largest probability is below `fallback`."""
    texts: list[tuple[Text, Any]] = [((), 1)]
    for _ in range(depth):
        longer: list[tuple[Text, Any]] = []
        for text, mass in texts:
            if draft is not None and max(draft(start + text)) < fallback:
                yield text, mass
            else:
                longer += [((*text, x), mass * b) for x, b in enumerate(draw(start + text)) if b]
        texts = longer
    yield from texts


def _typical(p: Numbers, q: Numbers, token: int, epsilon: float, delta: float) -> int:
    entropy = -sum(a * math.log(a) for a in p if a)
    return int(p[token] > min(epsilon, delta * math.exp(-entropy)))


def _lenient(p: Numbers, q: Numbers, token: int, factor: float, argmax: bool) -> Any:
    return int(factor * p[token] >= max(p)) if argmax else min(1, factor * p[token] / q[token])


def _close(p: Numbers, q: Numbers, token: int, rollback: float) -> int:
    return int(bool(p[token]) and -math.log(p[token]) <= rollback)


def process(name: str, options: Mapping[str, Any]) -> CycleLaw:
    """The declared law of one cycle of a rule with these options."""
    argmax = bool(options.get("argmax"))
    if name == "typical":
        test = partial(_typical, epsilon=options["epsilon"], delta=options["delta"])
        return partial(accepting_cycle, test, argmax=argmax)
    if name == "lenient":
        test = partial(_lenient, factor=options["factor"], argmax=argmax)
        return partial(accepting_cycle, test, residual=True, argmax=argmax)
    test = partial(_close, rollback=options["rollback"])
    return partial(accepting_cycle, test, fallback=options["fallback"], argmax=argmax)


def check_mixture(name: str, rule: str, alpha: str, pair: Pair, depth: int = 2, cycles: int = 2) -> Check:
    """Two cycles of a cascade, continued by its own law, against the product of its law; equality in fractions."""
    target, draft = laws(pair.target), laws(pair.draft)
    mixture = mixture_of(rule, Fraction(alpha))
    emitted: dict[Text, Fraction] = {(): Fraction(1)}
    for _ in range(cycles):
        after: dict[Text, Fraction] = defaultdict(Fraction)
        for text, mass in emitted.items():
            for (_, new), chance in cascade_cycle(mixture, target, draft, pair.prompt + text, depth).items():
                after[text + new] += mass * chance
        emitted = after
    worst = Fraction(0)
    for text in product(range(pair.target.vocab), repeat=cycles * depth):
        got, rest = Fraction(0), Fraction(1)
        for i in range(len(text), 0, -1):
            got += emitted.get(text[:i], Fraction(0)) * rest
            context = pair.prompt + text[: i - 1]
            rest *= mixture(target(context), draft(context))[text[i - 1]]
        worst = max(worst, abs(rest - got))
    return Check(name, "rational", worst == 0, f"deviation {worst}")
