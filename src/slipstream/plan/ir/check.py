"""The spec of plans. Every plan passes `check_plan` before it runs; an illegal or pointless one is a `PlanError`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from slipstream.plan.ir.catalogue import Catalogue
from slipstream.plan.ir.check_parts import (
    check_draft,
    check_drafter,
    check_model,
    check_route,
    check_rule,
    check_schedule,
    check_siblings,
)
from slipstream.plan.ir.nodes import (
    OPERATIONS,
    CommitNode,
    DrafterNode,
    DraftNode,
    GuardNode,
    ModelNode,
    Plan,
    PlanError,
    PlanNode,
    Position,
    RouteNode,
    ScoreNode,
    StageNode,
    VerifyNode,
)
from slipstream.plan.ir.parser import near

Kinds = tuple[type[PlanNode], ...]
STAGES = "staged"  # the drafter that runs a stage node
OVERLAP = "overlapped"  # the drafter that runs another one while the target scores


def check_plan(plan: Plan, catalogue: Catalogue | None = None, source: str = "plan") -> Plan:
    """Return the plan, or raise PlanError. Without a `catalogue` drafters are not looked up."""
    try:
        _check_cycle(plan)
        _check_names(plan)
        for node in plan.nodes:
            _check_node(plan, node, catalogue)
        if catalogue is not None:
            _check_match(plan, catalogue)
    except _Fault as fault:
        raise PlanError(f"{title(fault.node)}: {fault.message}", fault.node.position, source) from None
    except ValueError as error:
        if isinstance(error, PlanError):
            raise PlanError(error.message, error.position, source) from None
        raise
    return plan


class _Fault(Exception):
    def __init__(self, node: PlanNode, message: str) -> None:
        super().__init__(message)
        self.node, self.message = node, message


def _fail(node: PlanNode, message: str) -> NoReturn:
    raise _Fault(node, message)


def title(node: PlanNode) -> str:
    """How errors name a node."""
    name = getattr(node, "name", None)
    if name is None:
        return node.word
    return f"{node.word} {'%' if isinstance(node, OPERATIONS) else ''}{name}"


def references(node: PlanNode) -> Iterator[tuple[str, Kinds]]:
    """The names that a node refers to, each with the kinds of nodes that it may name."""
    match node:
        case StageNode():
            yield from ((name, (DrafterNode,)) for name in node.drafters)
        case DraftNode():
            yield node.drafter, (DrafterNode, StageNode)
        case GuardNode():
            yield node.draft, (DraftNode,)
        case ScoreNode():
            yield node.model, (ModelNode,)
            if node.draft is not None:
                yield node.draft, (DraftNode, GuardNode)
        case VerifyNode():
            yield node.scores, (ScoreNode,)
        case RouteNode():
            yield node.model, (ModelNode,)
            yield node.verdict, (VerifyNode,)
        case CommitNode():
            yield node.verdict, (VerifyNode, RouteNode)


def _check_names(plan: Plan) -> None:
    """Names are unique, defined before their use, of the right kind, and used exactly once or more."""
    seen: dict[str, PlanNode] = {}
    used = Counter[str]()
    for node in plan.nodes:
        for name, kinds in references(node):
            words = " or ".join(kind.word for kind in kinds)
            if name not in seen:
                legal = [other for other, earlier in seen.items() if isinstance(earlier, kinds)]
                _fail(node, f"there is no {words} {name!r} before it{near(name, legal)}")
            if not isinstance(seen[name], kinds):
                _fail(node, f"{name!r} is a {seen[name].word}, and a {words} belongs there")
            used[name] += 1
        own: str | None = getattr(node, "name", None)
        if own in seen:
            _fail(node, f"the name {own!r} is taken by an earlier {seen[own].word}")
        if own is not None:
            seen[own] = node
    for name, node in seen.items():
        if not used[name]:
            _fail(node, "it is never used; leave it out, or use it")


def _check_cycle(plan: Plan) -> None:
    """One cycle: at most one draft, one score, one verify, and commit at the end."""
    if not plan.nodes or not isinstance(plan.nodes[-1], CommitNode):
        last = plan.nodes[-1].position if plan.nodes else Position(1, 1)
        raise PlanError("a plan ends with commit %VERDICT", last)
    for kind in (DraftNode, GuardNode, ScoreNode, CommitNode):
        same = [node for node in plan.nodes if isinstance(node, kind)]
        if len(same) > 1:
            _fail(same[1], f"a cycle has one {kind.word}; this is the second")


def _check_node(plan: Plan, node: PlanNode, catalogue: Catalogue | None) -> None:
    try:
        match node:
            case ModelNode():
                check_model(node)
            case DrafterNode():
                check_drafter(node, catalogue)
            case StageNode():
                if len(node.drafters) < 2:
                    raise ValueError("it has one drafter; stages are two or more")
                if catalogue is not None and STAGES not in catalogue.drafters:
                    raise ValueError(f"there is no drafter {STAGES} to run it")
            case DraftNode():
                check_draft(node)
            case GuardNode():
                guarded = plan.node(node.draft)
                if not isinstance(guarded.depth, int):
                    raise ValueError("the depth is adaptive and includes plain decoding already; leave the guard out")
                if guarded.shape is not None:
                    raise ValueError("a tree of a given shape cannot be shortened; guard a chain, or leave it out")
            case VerifyNode():
                draft: Any = plan.one(DraftNode)
                check_rule(node, tree=draft is not None and draft.shape is not None)
                check_schedule(node, draft, guarded=plan.one(GuardNode) is not None)
            case RouteNode():
                check_route(node, plan.node(node.model), plan.target, plan.one(DraftNode), plan.one(VerifyNode))
    except ValueError as error:
        _fail(node, str(error))


def _check_match(plan: Plan, catalogue: Catalogue) -> None:
    """The drafter fits the rule and the target."""
    draft, verify = plan.one(DraftNode), plan.one(VerifyNode)
    if draft is None:
        return
    drafter, target = plan.node(draft.drafter), plan.target
    kind = STAGES if isinstance(drafter, StageNode) else drafter.kind
    if draft.shape is not None:
        try:
            check_siblings(verify.rule, kind, catalogue.siblings(kind))
        except ValueError as error:
            _fail(draft, str(error))
    if draft.overlap and catalogue.reads_target(kind):
        _fail(draft, f"{kind} drafts from what the target has computed, so it cannot overlap with its pass")
    if isinstance(drafter, DrafterNode):
        trained_for = catalogue.trained_for(drafter.kind, drafter.options)
        if trained_for is not None and trained_for != target.model:
            _fail(drafter, f"it was trained for {trained_for}; the target is {target.model}")
