"""The text form of a plan, as it is kept in files.

plan smollm2.eagle
  target = model("smollm2-135m")
  head = eagle()
  %d = draft head depth=adaptive(0..8)
  %s = score target %d
  %v = verify auto(seeded=coupled, else=block) %s
  commit %v
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from slipstream.plan.ir.nodes import (
    DEFINITIONS,
    VERSION,
    CommitNode,
    DrafterNode,
    DraftNode,
    GuardNode,
    ModelNode,
    Plan,
    PlanNode,
    RouteNode,
    ScoreNode,
    StageNode,
    VerifyNode,
)
from slipstream.plan.ir.values import shown, shown_rule

MAIN_OPTION = "model"  # the option of a drafter that is written without its name
ALWAYS = ("depth",)  # arguments that are written even with their default


def text_of(plan: Plan, full: bool = False) -> str:
    """The plan as text, with its comments. `full`: every argument is written, defaults too."""
    version = f" version={plan.version}" if full or plan.version != VERSION else ""
    lines = [*(f"# {comment}".rstrip() for comment in plan.heading), f"plan {shown(plan.name)}{version}"]
    for node in plan.nodes:
        lines += [f"  # {comment}".rstrip() for comment in node.comments]
        lines.append(f"  {line_of(node, full)}" + (f"  # {node.remark}" if node.remark else ""))
    lines += [f"  # {comment}".rstrip() for comment in plan.comments]
    return "\n".join(lines) + "\n"


def line_of(node: PlanNode, full: bool = False) -> str:
    """One node as text, without its comments."""
    arguments = [f"{name}={_bare(node, name, value)}" for name, value in _written(node, full)]
    if isinstance(node, DEFINITIONS):
        return f"{node.name} = {_word(node)}({', '.join([*_positional(node), *arguments])})"  # type: ignore[attr-defined]
    words = " ".join([node.word, *_operands(node), *arguments])
    return words if isinstance(node, CommitNode) else f"%{node.name} = {words}"  # type: ignore[attr-defined]


def _word(node: PlanNode) -> str:
    return node.kind if isinstance(node, DrafterNode) else node.word


def _positional(node: PlanNode) -> Iterator[str]:
    if isinstance(node, ModelNode):
        yield _quoted(node.model)
    elif isinstance(node, DrafterNode) and isinstance(node.options.get(MAIN_OPTION), str):
        yield _quoted(str(node.options[MAIN_OPTION]))
    elif isinstance(node, StageNode):
        yield from node.drafters


def _quoted(text: str) -> str:
    words = shown(text)
    return words if words.startswith('"') else f'"{words}"'


def _bare(node: PlanNode, name: str, value: Any) -> str:
    """A value; shapes such as 24 and 4x2x1 and scores such as quantile(q=0.1) are written without quotes."""
    if isinstance(node, RouteNode) and name == "score":
        return shown_rule(value)
    bare = isinstance(node, DraftNode) and name == "shape" and re.fullmatch(r"\d+(x\d+)*", str(value))
    return str(value) if bare else shown(value)


def _written(node: PlanNode, full: bool) -> Iterator[tuple[str, Any]]:
    """The arguments that are written as `key=value`."""
    if isinstance(node, DrafterNode):
        yield from ((k, v) for k, v in node.options.items() if not (k == MAIN_OPTION and isinstance(v, str)))
    for entry in fields(node):
        if "help" in entry.metadata:
            value = getattr(node, entry.name)
            if full or entry.name in ALWAYS or value != entry.default:
                yield entry.name, value


def _operands(node: PlanNode) -> list[str]:
    match node:
        case DraftNode():
            return [node.drafter]
        case GuardNode():
            return [f"%{node.draft}"]
        case ScoreNode():
            return [node.model, *([f"%{node.draft}"] if node.draft else [])]
        case VerifyNode():
            return [shown_rule(node.rule), f"%{node.scores}"]
        case RouteNode():
            return [node.model, f"%{node.verdict}"]
        case CommitNode():
            return [f"%{node.verdict}"]
    raise TypeError(f"{node} is no operation")
