"""Chooses the verification rule of a request, and states what its output promises."""

from __future__ import annotations

from slipstream.core.rules import rules
from slipstream.engines.base import Guarantee


def choose_rule(named: str | None, temperature: float, seeded: bool, tree: bool) -> str:
    """The name of the rule that verifies a request. `named`: the user's own choice, or None.

    At temperature 0 every rule gives the greedy output. A seed must always give the same text. Only `coupled`
    guarantees that when the depth varies, as it does under a policy. Without a seed the default is the rule that
    accepts most.
    """
    needs_greedy = named is not None and rules.get(named).greedy
    if temperature == 0:
        return "greedy"
    if needs_greedy:
        raise ValueError(f"the {named} rule needs temperature 0; use token, block or coupled for sampling")
    if named is not None:
        return named
    if seeded:
        return "coupled"
    return "no_replace" if tree else "block"


def guarantee(rule: str, seeded: bool, invariant: bool) -> Guarantee:
    """The guarantees of a request under a rule. Outside invariant mode, rounding depends on the shape of a pass."""
    kind = rules.get(rule)
    repeats = kind.greedy or (seeded and kind.shared)
    return Guarantee(rule, kind.lossless, ("bit for bit" if invariant else "up to ties") if repeats else None)
