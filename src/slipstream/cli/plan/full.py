"""A plan with every default written out."""

from __future__ import annotations

from dataclasses import replace

from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.plan.ir.nodes import DrafterNode, Plan


def with_defaults(plan: Plan) -> Plan:
    """The same plan with all options of its drafters."""
    catalogue = DrafterCatalogue()
    nodes = [
        replace(node, options={**catalogue.defaults(node.kind), **node.options})
        if isinstance(node, DrafterNode)
        else node
        for node in plan.nodes
    ]
    return replace(plan, nodes=tuple(nodes))
