"""Audits of the lossy rules on tables. Each is checked against the law that it declares itself, not the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial

from slipstream.audit.check import Check, Planned, planned
from slipstream.audit.rational.lossy import MIXTURES, check_mixture, largest, mixture_of, process
from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.costs import Costs
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.core.interfaces import Verifier
from slipstream.core.rules import rules
from slipstream.core.spec import parse_spec, spec_name, spec_text
from slipstream.plan.policy.policies import Fixed

ALPHA = "0.4"  # of a cascade that is audited without options


def mixture_subject(name: str, alpha: str, depth: int, make: Callable[..., Verifier] | None = None) -> Subject:
    """A cascade with its declared law. `make`: another class in its place, for planted bugs."""
    rule = partial(make, alpha=float(alpha)) if make else lambda: rules.make(name, alpha=alpha)
    return Subject(rule, lambda: Fixed(depth), declared=mixture_of(name, float(alpha)), depth=depth)


def process_subject(rule: Verifier, depth: int, make: Callable[[], Verifier] | None = None) -> Subject:
    """A rule that declares the law of a cycle at a fixed depth. `make`: another rule in its place, for planted bugs."""
    options = asdict(rule)  # type: ignore[call-overload]
    cycle = process(rule.name, options)
    return Subject(make or (lambda: rule), lambda: Fixed(depth), process=cycle, depth=depth)


def plan_lossy_rule(spec: str, pair: Pair, depth: int, samples: int) -> Iterator[Planned[Check]]:
    """Plan every check of a lossy rule, with or without options."""
    name, costs = spec_name(spec), Costs.of(pair, depth)
    if name in MIXTURES:
        yield from _plan_mixture(name, parse_spec(spec)[1].get("alpha", ALPHA), pair, depth, samples, costs)
        return
    rule = rules.make(spec)
    subject, greedy = process_subject(rule, depth), process_subject(replace(rule, argmax=True), depth)  # type: ignore[type-var]
    yield planned(f"{spec}: two cycles, own law", check_cycles, subject, pair, depth, cost=costs.exact / 2)
    yield planned(f"{spec}: two cycles at temperature 0", check_cycles, greedy, pair, depth, cost=0.1)
    yield planned(f"{spec}: sampled continuations", check_sampled, subject, pair, samples, cost=costs.sampled(samples))


def _plan_mixture(
    name: str, alpha: str, pair: Pair, depth: int, samples: int, costs: Costs
) -> Iterator[Planned[Check]]:
    title, subject = spec_text(name, {"alpha": alpha}), mixture_subject(name, alpha, depth)
    settings = {
        "two cycles, own law": subject,
        "two cycles, adaptive depth": replace(subject, policy=lambda: HistoryPolicy(depth)),
    }
    cost = costs.exact / 2
    yield planned(f"{title}: joint law of two cycles", check_mixture, name, alpha, pair, cost=Costs.of(pair, 2).exact)
    for words, changed in settings.items():
        yield planned(f"{title}: {words}", check_cycles, changed, pair, depth, cost=cost)
    yield planned(f"{title}: end token and limit", check_endings, subject, pair, cost=cost)
    law = mixture_of(name, float(alpha))
    greedy = replace(
        subject,
        rule=lambda: rules.make(name, alpha=alpha, argmax=True),
        declared=lambda p, q: largest(law(p, q)),
    )
    yield planned(f"{title}: two cycles at temperature 0", check_cycles, greedy, pair, depth, cost=0.1)
    yield planned(f"{title}: sampled continuations", check_sampled, subject, pair, samples, cost=costs.sampled(samples))
