"""From a plan to the decoding of a request: the plan's settings, what the request chooses for itself, and what its
output promises."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.spec import parse_spec, spec_text
from slipstream.engines.base import Guarantee
from slipstream.engines.job import DecodingPlan
from slipstream.engines.options import Speculation
from slipstream.plan.ir.build import TREE_RULE
from slipstream.plan.ir.nodes import AutoRule
from slipstream.plan.lower.native import NativeSettings
from slipstream.plan.policy.config import TreeConfig

SEEDED_DEPTH = 3  # of a request whose depth must not depend on earlier requests


@lru_cache(maxsize=256)
def choose_rule(named: str | None, auto: AutoRule, temperature: float, seeded: bool, tree: bool) -> str:
    """The name of the rule that verifies a request. `named`: the plan's or the user's own choice, or None. `auto`: the
    plan's choice by seed.

    At temperature 0 every lossless rule gives the greedy output, and a lossy rule takes its own argmax form. A seed
    must always give the same text. Only `coupled` guarantees that when the depth varies, as it does under a policy.
    Without a seed the default is the rule that accepts most."""
    needs_greedy = named is not None and rules.get(named).greedy
    if temperature == 0:
        return "greedy" if named is None or rules.get(named).lossless else argmax_form(named)
    if needs_greedy:
        raise ValueError(f"the {named} rule needs temperature 0; use token, block or coupled for sampling")
    if named is not None:
        return named
    if seeded:
        return auto.seeded
    return TREE_RULE if tree and not rules.get(auto.other).siblings else auto.other


def request_plan(settings: NativeSettings, drafter: str, speculation: Speculation, sampling: Sampling) -> DecodingPlan:
    """How a request is decoded. `drafter`: the name of the engine's own drafter."""
    own_depth = None if settings.plain and speculation.drafter else settings.depth  # who names a drafter wants drafts
    depth = own_depth if speculation.depth is None else speculation.depth
    shape = settings.shape if speculation.shape is None else speculation.tree
    named = speculation.verify or settings.rule
    plain = speculation.off or depth == 0
    if plain and named is not None and not rules.get(named).lossless:
        named = None  # plain decoding has the target's own law
    rule = choose_rule(named, settings.auto, sampling.temperature, sampling.seed is not None, tree=shape is not None)
    if plain:
        return DecodingPlan("none", rule, 0)
    check_schedule(rule, depth, shape is not None)
    if shape is not None and depth is None:
        depth = shape.depth or TreeConfig().depth
    if depth is None and meets_its_draws_again(rule, sampling):
        depth = SEEDED_DEPTH
    return DecodingPlan(speculation.drafter or drafter, rule, depth, shape)


def argmax_form(rule: str) -> str:
    """A lossy rule for temperature 0: it sees laws at temperature 1, and all draws are the largest probabilities."""
    name, options = parse_spec(rule)
    return spec_text(name, options | {"argmax": "true"})


def law_sampling(rule: str, sampling: Sampling) -> Sampling:
    """The sampling parameters of the laws that a rule sees."""
    if sampling.temperature > 0 or rules.get(rule).lossless:
        return sampling
    return replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def check_schedule(rule: str, depth: int | None, tree: bool) -> None:
    """Raise ValueError for a lossy rule whose law would depend on the policy, or on a tree."""
    kind = rules.get(rule)
    if tree and not kind.lossless:
        raise ValueError(f"the rule {rule} verifies chains; leave the tree out")
    if depth is None and kind.fixed_schedule:
        raise ValueError(f"the law of the rule {rule} depends on the depth, so it cannot adapt; give a depth")


def meets_its_draws_again(rule: str, sampling: Sampling) -> bool:
    """Whether a repeated request repeats draws whose outcome depends on the draft: it has a seed, and no shared noise.

    What remembers earlier answers would then depend on the same draws, which biases the output: the first answer
    chooses the draft, or the depth, that the same coins meet again. So such a request uses no history of outputs, and
    its depth is fixed, because the policy learns from all requests."""
    return sampling.seed is not None and sampling.temperature > 0 and not rules.get(rule).shared


@lru_cache(maxsize=256)
def guarantee(rule: str, seeded: bool, invariant: bool) -> Guarantee:
    """The guarantees of a request under a rule. Outside invariant mode, rounding depends on the shape of a pass."""
    kind = rules.get(rule)
    repeats = kind.greedy or (seeded and kind.shared)
    repeats = repeats or rules.make(rule).argmax
    return Guarantee(rule, kind.lossless, ("bit for bit" if invariant else "up to ties") if repeats else None)
