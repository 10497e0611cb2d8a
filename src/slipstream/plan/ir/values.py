"""The values of arguments in the text form: words, numbers, strings, ranges and calls such as `adaptive(0..8)`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.spec import SPEC, spec_text
from slipstream.plan.ir.lexer import WORD
from slipstream.plan.ir.nodes import AdaptiveDepth, AutoRule, Position, Value

CONSTANTS: Mapping[str, Value] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Range:
    """`low..high`."""

    low: int
    high: int


@dataclass(frozen=True)
class Call:
    """`word(argument, key=value, ...)`."""

    word: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    position: Position | None = field(default=None, compare=False)


def shown(value: Any) -> str:
    """A value in the text form. Parsing it again gives the value."""
    if isinstance(value, AdaptiveDepth):
        policy = "" if value.policy == AdaptiveDepth.policy else f", policy={shown(value.policy)}"
        return f"adaptive({value.low}..{value.high}{policy})"
    if isinstance(value, AutoRule):
        return f"auto(seeded={shown(value.seeded)}, else={shown(value.other)})"
    for word, constant in CONSTANTS.items():
        if value is constant:
            return word
    if isinstance(value, str) and (value in CONSTANTS or not re.fullmatch(WORD, value)):
        return json.dumps(value)
    return str(value)


def as_depth(value: Any) -> int | AdaptiveDepth | None:
    """The depth that a parsed value stands for, or None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value == "adaptive":
        return AdaptiveDepth()
    if isinstance(value, Call) and value.word == "adaptive" and set(value.named) <= {"policy"}:
        limits = value.arguments or (Range(AdaptiveDepth.low, AdaptiveDepth.high),)
        policy = value.named.get("policy", AdaptiveDepth.policy)
        if len(limits) == 1 and isinstance(limits[0], Range) and isinstance(policy, str):
            return AdaptiveDepth(limits[0].low, limits[0].high, policy)
    return None


def shown_rule(rule: str | AutoRule) -> str:
    """A rule in the text form: a name, or a call with the rule's options."""
    return rule if isinstance(rule, str) and SPEC.fullmatch(rule) and "(" in rule else shown(rule)


def as_rule(value: Any) -> str | AutoRule | None:
    """The rule that a parsed value stands for, or None."""
    if (
        isinstance(value, Call)
        and value.word == "auto"
        and not value.arguments
        and set(value.named) <= {"seeded", "else"}
    ):
        seeded, other = value.named.get("seeded", AutoRule.seeded), value.named.get("else", AutoRule.other)
        return AutoRule(seeded, other) if isinstance(seeded, str) and isinstance(other, str) else None
    if value == "auto":
        return AutoRule()
    if isinstance(value, Call) and not value.arguments:
        return spec_text(value.word, {key: shown(option) for key, option in value.named.items()})
    return value if isinstance(value, str) else None
