"""The flags that describe a plan, and the plan that they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags

if TYPE_CHECKING:
    from slipstream.plan.ir.nodes import Plan

PlanSource = Annotated[
    str | None, typer.Option("--plan", metavar="FILE|NAME", help="A plan file, or the name of a plan of slipstream.")
]
IN_PLAN = ("model", "drafter", "verify", "depth", "tree", "option", "dtype", "device", "invariant", "trust_remote_code",
           "route", "small", "threshold", "score")  # fmt: skip
NAMES = {"model": "-m", "drafter": "-d", "option": "-o"}


@dataclass(frozen=True)
class PlanFlags:
    """A plan: a file or a name, or the flags of `generate`."""

    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="A plan file or name; without it, the flags below.")
    ] = None
    model: flags.ModelName = "smollm2-135m"
    drafter: flags.DrafterName = "ngram"
    verify: flags.AnyRule = None
    depth: flags.Depth = None
    tree: flags.Shape = None
    option: flags.Settings = None
    dtype: flags.Dtype = "auto"
    device: flags.Device = "auto"
    invariant: flags.Invariant = None
    trust_remote_code: flags.TrustRemoteCode = False
    route: Annotated[str | None, typer.Option(help="Add a route: request or token. It needs --small. Lossy.")] = None
    small: Annotated[str | None, typer.Option(metavar="MODEL", help="The small model of the route.")] = None
    threshold: Annotated[float, typer.Option(help="Of the route: 0 is the small model alone, 1 the large one.")] = 0.5
    score: Annotated[str, typer.Option(help="Of the route: mean, quantile(q=0.1), entropy or agreement(n=5).")] = "mean"

    def plan(self, context: typer.Context) -> Plan:
        """The checked plan."""
        from slipstream.engines.drafter_catalogue import DrafterCatalogue, plan_of_flags
        from slipstream.plan.ir.check import check_plan
        from slipstream.plan.ir.library import load_plan

        if self.file is not None:
            loaded = load_plan(self.file)  # first, for a name that is no plan's, such as a prompt
            refuse_beside_plan(context)
            return check_plan(loaded, DrafterCatalogue(), self.file)
        loading: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        loading |= {"invariant": self.invariant, "trust_remote_code": self.trust_remote_code}
        options = flags.settings(self.option)
        how: dict[str, Any] = {"verify": self.verify, "depth": self.depth, "shape": self.tree}
        plan = plan_of_flags(self.model, self.drafter, options, **how, **loading)
        return check_plan(self._routed(plan), DrafterCatalogue())

    def _routed(self, plan: Plan) -> Plan:
        """The plan with the route of the flags, if they describe one."""
        from slipstream.plan.ir.build import add_route

        if (self.route is None) != (self.small is None):
            given, missing = ("--route", "--small MODEL") if self.small is None else ("--small", "--route request")
            raise ValueError(f"{given} needs {missing}")
        if self.route is None or self.small is None:
            return plan
        return add_route(plan, self.small, level=self.route, threshold=self.threshold, score=self.score)


def from_plan(context: typer.Context, given: str | None) -> dict[str, Any]:
    """The arguments of an engine that a plan gives; none without one. ValueError for flags that it states as well."""
    if given is None:
        return {}
    from slipstream.engines.drafter_catalogue import DrafterCatalogue
    from slipstream.plan.ir.check import check_plan
    from slipstream.plan.ir.library import load_plan
    from slipstream.plan.ir.nodes import DraftNode
    from slipstream.plan.lower.native import drafting
    from slipstream.plan.lower.routes import without_token_route

    loaded = load_plan(given)  # first, for a name that is no plan's, such as a prompt
    refuse_beside_plan(context)
    plan = check_plan(loaded, DrafterCatalogue(), given)
    lowered = without_token_route(plan)
    draft = lowered.one(DraftNode)
    depth = 0 if draft is None else draft.depth if isinstance(draft.depth, int) else None
    drafter = "none" if draft is None else drafting(lowered, draft)[0]
    return {"plan": plan, "model": plan.target.model, "drafter": drafter, "depth": depth}


def load_plans(context: typer.Context, given: Sequence[str], model: str) -> tuple[dict[str, Plan], str]:
    """The plans of `bench` by name, and their model; without plans, `model`. Plans share one loaded model."""
    from slipstream.engines.drafter_catalogue import DrafterCatalogue
    from slipstream.plan.ir.check import check_plan
    from slipstream.plan.ir.library import load_plan
    from slipstream.plan.ir.nodes import ModelNode

    plans: dict[str, Plan] = {}
    for name in given:
        refuse_beside_plan(context, ("model", "dtype", "device", "trust_remote_code"))
        plan = check_plan(load_plan(name), DrafterCatalogue(), name)
        if plan.name in plans:
            raise ValueError(f"two plans are called {plan.name}; plans that are compared have different names")
        plans[plan.name] = plan
    targets = {plan.target for plan in plans.values()}
    if len(targets) > 1 or any(node != ModelNode(node.name, node.model) for node in targets):
        raise ValueError('plans that are compared have one model with default loading; write model("NAME") in all')
    return plans, next(iter(targets)).model if targets else model


def audited_plan(context: typer.Context, given: str) -> tuple[Any, ...]:
    """What `audit` checks of a plan: model, drafter, options, rule, depth, tree, and how the model is loaded.

    Depth None: audits choose one, since the law does not depend on it. Model None: a lossy rule is audited on tables,
    against the law that it declares."""
    from slipstream.core.rules import rules
    from slipstream.plan.ir.check import title
    from slipstream.plan.ir.nodes import DraftNode, PlanError
    from slipstream.plan.lower.native import lower_native
    from slipstream.plan.lower.routes import request_route

    stated = from_plan(context, given)
    if (route := request_route(stated["plan"])) is not None:
        raise PlanError(f"{title(route)}: a route has no law of its own; audit the plan without it", route.position)
    settings = lower_native(stated["plan"])
    if settings.rule is not None and not rules.get(settings.rule).lossless:
        return None, settings.drafter, {}, settings.rule, None, None, "auto", "auto", None, False
    shape = None if settings.shape is None else stated["plan"].one(DraftNode).shape
    loading = (settings.loading[name] for name in ("dtype", "device", "invariant", "trust_remote_code"))
    return (settings.model, settings.drafter, dict(settings.options), settings.rule, settings.depth, shape, *loading)


def refuse_beside_plan(context: typer.Context, names: Sequence[str] = IN_PLAN) -> None:
    """Raise ValueError if a flag was given that a plan states as well. `-o` may be an option of another engine."""
    other_engine = context.params.get("engine") not in (None, "native")
    for name in names:
        if name == "option" and other_engine:
            continue
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = NAMES.get(name, f"--{name.replace('_', '-')}")
            raise ValueError(f"a plan and {flag} are both given; the plan says all of it, so leave {flag} out")
