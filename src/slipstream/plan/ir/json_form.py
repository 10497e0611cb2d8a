"""The JSON form of a plan: a dictionary with `name`, `version` and `nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from slipstream.plan.ir.nodes import (
    DEFINITIONS,
    OPERATIONS,
    VERSION,
    AdaptiveDepth,
    AutoRule,
    Plan,
    PlanError,
    PlanNode,
)

NODES = {node.word: node for node in (*DEFINITIONS, *OPERATIONS)}


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as a dictionary of JSON values. Every argument is there, and comments where there are some."""
    nodes = [_node(node) for node in plan.nodes]
    comments = {name: list(lines) for name in ("heading", "comments") if (lines := getattr(plan, name))}
    return {"name": plan.name, "version": plan.version, "nodes": nodes, **comments}


def from_json(data: Any) -> Plan:
    """The plan of a dictionary. PlanError if it is none."""
    if (
        not isinstance(data, Mapping)
        or not isinstance(data.get("nodes"), list)
        or not isinstance(data.get("name"), str)
    ):
        raise PlanError('a plan in JSON is an object with "name", "version" and "nodes"')
    version = data.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise PlanError(f"the plan has version {version!r}; this slipstream reads versions up to {VERSION}")
    comments = (tuple(data.get(name, ())) for name in ("heading", "comments"))
    return Plan(data["name"], tuple(map(_read, data["nodes"])), version, *comments)


def _node(node: PlanNode) -> dict[str, Any]:
    data = {"node": node.word} | asdict(node)
    del data["position"]
    if isinstance(getattr(node, "rule", None), AutoRule):
        data["rule"] = {"auto": data["rule"]}
    if isinstance(getattr(node, "depth", None), AdaptiveDepth):
        data["depth"] = {"adaptive": data["depth"]}
    if not node.comments:
        del data["comments"]
    if not node.remark:
        del data["remark"]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def _read(data: Any) -> PlanNode:
    if not isinstance(data, Mapping) or data.get("node") not in NODES:
        raise PlanError(f'a node of a plan in JSON has "node", one of {", ".join(NODES)}')
    kind = NODES[data["node"]]
    entries = {entry.name: entry for entry in fields(kind) if entry.name != "position"}
    values = {name: value for name, value in data.items() if name != "node"}
    for name in values:
        if name not in entries:
            raise PlanError(f"the node {kind.word} has no {name!r}; it has {', '.join(entries)}")
    for name, entry in entries.items():
        if name not in values and entry.default is MISSING and entry.default_factory is MISSING:
            raise PlanError(f"a node {kind.word} has no {name!r}, which it needs")
    try:
        return kind(**{name: _value(value) for name, value in values.items()})
    except (TypeError, AttributeError) as error:
        raise PlanError(f"the node {kind.word} holds a value of the wrong type: {error}") from error


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping) and set(value) == {"adaptive"}:
        return AdaptiveDepth(**value["adaptive"])
    if isinstance(value, Mapping) and set(value) == {"auto"}:
        return AutoRule(**value["auto"])
    return value
