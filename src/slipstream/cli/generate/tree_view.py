"""Draws the draft of one cycle as a tree: its tokens, their draft and target probabilities, and the accepted path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

if TYPE_CHECKING:
    from slipstream.core.law import Law
    from slipstream.core.types import Draft, Verdict

COLOURS = {"accepted": "green", "rejected": "dim", "recovered": "yellow", "bonus": "cyan"}


@dataclass
class BestDraft:
    """Records the draft with the most accepted tokens, and the largest among equal ones."""

    best: tuple[int, int] = (-1, 0)  # accepted and drafted tokens
    nodes: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, draft: Draft, target: Law, verdict: Verdict) -> None:
        path = [i for i in verdict.path[0].tolist() if i >= 0]
        if len(draft.tree) and (len(path), len(draft.tree)) > self.best:
            self.best = len(path), len(draft.tree)
            self.nodes = _nodes(draft, target, verdict, path)


def _nodes(draft: Draft, target: Law, verdict: Verdict, path: list[int]) -> list[dict[str, Any]]:
    """Every drafted token, followed by the token that verification added."""
    target_prob = target.select(draft.tree.origin).prob(draft.token).tolist()
    chance = draft.chance.tolist() if draft.chance is not None else [None] * len(draft.tree)
    nodes: list[dict[str, Any]] = [
        {"token": token, "parent": parent, "draft": q, "target": p, "kind": "accepted" if i in path else "rejected"}
        for i, ((_, parent), token, q, p) in enumerate(
            zip(draft.tree.lists, draft.token.tolist(), chance, target_prob, strict=True)
        )
    ]
    end = draft.tree.end(verdict.path)
    added = float(target.select(end).prob(verdict.token)[0])
    kind = "bonus" if bool(verdict.bonus[0]) else "recovered"
    last = {"token": int(verdict.token[0]), "parent": path[-1] if path else -1, "draft": None, "target": added}
    return [*nodes, {**last, "kind": kind}]


def drawing(draft: BestDraft, decode: Callable[[int], str]) -> Tree:
    """The recorded draft for a terminal."""
    accepted, drafted = draft.best
    title = f"the step that went furthest: {drafted} drafted, {accepted} accepted (q drafter, p target)"
    root = Tree(Text(title, style="bold"), guide_style="dim")
    branches = {-1: root}
    for i, node in enumerate(draft.nodes):
        line = Text(f"{decode(node['token'])!r}", style=COLOURS[node["kind"]])
        line.append(f"  {_figures(node)}", style="dim")
        branches[i] = branches[node["parent"]].add(line)
    return root


def _figures(node: dict[str, Any]) -> str:
    drafted = "" if node["draft"] is None else f"q {node['draft']:.2f}  "
    return f"{drafted}p {node['target']:.2f}  {node['kind']}"
