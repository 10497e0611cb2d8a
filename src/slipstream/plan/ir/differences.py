"""What differs between two plans."""

from __future__ import annotations

from difflib import unified_diff

from slipstream.plan.ir.nodes import Plan
from slipstream.plan.ir.text import line_of


def differences(first: Plan, second: Plan) -> list[str]:
    """The lines that differ, as `- …` and `+ …`, in order. Comments and the plans' names do not count."""
    before, after = ([line_of(node) for node in plan.nodes] for plan in (first, second))
    lines = list(unified_diff(before, after, lineterm="", n=0))[2:]
    return [f"{line[0]} {line[1:]}" for line in lines if not line.startswith("@@")]
