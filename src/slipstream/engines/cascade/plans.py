"""Opens the engine of a plan: the native engine, or a route between two of them."""

from __future__ import annotations

from os import PathLike
from typing import Any

from slipstream.engines.base import Engine
from slipstream.engines.cascade.request import RouteEngine, RouteOptions
from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.engines.native.engine import NativeEngine
from slipstream.plan.ir.check import check_plan
from slipstream.plan.ir.library import load_plan
from slipstream.plan.ir.nodes import Plan, RouteNode
from slipstream.plan.lower.routes import request_route, route_plans

SHARED = ("limits",)  # arguments that both engines of a route take


def open_plan(plan: Plan | str | PathLike[str], **arguments: Any) -> Engine:
    """The engine of a plan: a `Plan`, a file, or a name. `arguments`: those of `Engine` that a plan does not state.

    A plan with a route between whole answers opens two engines, each on first need. All others open one `Engine`."""
    source = str(plan) if isinstance(plan, str | PathLike) else "plan"
    return open_checked(check_plan(load_plan(plan), DrafterCatalogue(), source), **arguments)


def open_checked(plan: Plan, model: Any = "", **arguments: Any) -> Engine:
    """The engine of a checked plan. `model`: the plan's target if it is loaded already."""
    route = request_route(plan)
    return NativeEngine(model, plan=plan, **arguments) if route is None else _open_route(plan, route, model, arguments)


def _open_route(plan: Plan, route: RouteNode, model: Any, arguments: dict[str, Any]) -> RouteEngine:
    small, large = route_plans(plan)
    shared = {name: value for name, value in arguments.items() if name in SHARED}
    return RouteEngine(
        lambda: NativeEngine(plan=small, **shared),
        lambda: NativeEngine(model, plan=large, **arguments),
        RouteOptions(route.threshold, route.score),
    )
