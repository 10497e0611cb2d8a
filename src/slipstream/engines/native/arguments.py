"""Checks the types of the engine's arguments, and makes the plan that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from inspect import signature
from os import PathLike
from typing import Any

from slipstream.core.checks import shown
from slipstream.core.interfaces import Drafter, Policy
from slipstream.core.rules import rules
from slipstream.engines.drafter_catalogue import DrafterCatalogue, plan_of_flags
from slipstream.engines.native.planning import check_schedule
from slipstream.engines.native.scheduler import Limits
from slipstream.engines.options import Speculation
from slipstream.models.load_target import load_target
from slipstream.plan import policies
from slipstream.plan.ir.build import build_plan
from slipstream.plan.ir.check import check_plan
from slipstream.plan.ir.library import load_plan
from slipstream.plan.ir.nodes import Plan
from slipstream.plan.lower.native import LOADING as IN_PLAN
from slipstream.plan.lower.native import lower_native

LOADING = (*list(signature(load_target).parameters)[1:], "tokenizer")
PARTS = ("model", "drafter", "verify", "depth", "shape", "options", "limits", "watch", "policy", "plan")
OPTIONS = (*PARTS, "profile", "learn", *LOADING)
OTHER_NAMES = {"tree": "shape", "rule": "verify", "temperature": "Sampling(temperature=…) in a request"}


def check_types(drafter: Any, options: Any, limits: Any, watch: Any, loading: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments of the wrong type and for unknown options."""
    for name in loading:
        if name not in LOADING:
            near = OTHER_NAMES.get(name) or next(iter(get_close_matches(name, OPTIONS, 1)), None)
            hint = f"; use {near}" if near else ""
            raise ValueError(f"the engine has no option {name!r}; it takes {', '.join(OPTIONS)}{hint}")
    if not isinstance(drafter, str | Drafter | None):
        raise ValueError(f"drafter is {shown(drafter)}; it must be a name, a Drafter, or None for plain decoding")
    if not isinstance(options, Mapping | None):
        raise ValueError(f"options is {shown(options)}; it must be a dictionary of the drafter's own options")
    if options and isinstance(drafter, Drafter):
        raise ValueError(f"options is {shown(options)}; a drafter given as an object takes none")
    if not isinstance(limits, Limits | None):
        raise ValueError(f"limits is {shown(limits)}; it must be Limits(rows=…, tokens=…, …)")
    if watch is not None and not callable(watch):
        raise ValueError(f"watch is {shown(watch)}; it must be a function of a draft, a law and a verdict")


def chosen_policy(chosen: str | Policy | None, max_depth: int | None = None) -> Policy:
    """The policy with a registered name, by default `adaptive`. A `Policy` object is returned unchanged.

    `max_depth`: the policy's limit; None: its own."""
    if chosen is None or isinstance(chosen, str):
        kind = policies.get(chosen or "adaptive")
        return kind.build() if max_depth is None else kind.build(max_depth)
    if not callable(getattr(chosen, "budget", None)):
        raise ValueError(f"policy is {shown(chosen)}; it must be a Policy or one of {', '.join(policies)}")
    return chosen


def own_drafter(drafter: str | Drafter | None) -> Drafter | None:
    """The drafter that was passed as an object, or None."""
    return drafter if isinstance(drafter, Drafter) else None


def engine_plan(
    plan: Plan | str | PathLike[str] | None,
    model: Any,
    drafter: str | Drafter | None,
    chosen: Speculation,
    options: Mapping[str, Any] | None,
    policy: str | Policy | None,
    loading: Mapping[str, Any],
) -> tuple[Plan, str]:
    """The checked plan of an engine's arguments, and the name of its drafter in requests.

    A part that was passed as an object (model, drafter or policy) is in the plan by its class name."""
    if plan is not None:
        return _given_plan(plan, drafter, chosen, options, policy, loading)
    arguments: dict[str, Any] = {"verify": chosen.verify, "depth": chosen.depth, "shape": chosen.tree}
    if chosen.verify is not None:
        rules.make(chosen.verify)
        check_schedule(chosen.verify, chosen.depth, chosen.tree is not None)
    arguments["policy"] = policy if isinstance(policy, str) else None
    arguments |= {name: loading[name] for name in IN_PLAN if name in loading}
    place = str(model) if isinstance(model, str | PathLike) else type(model).__name__
    if isinstance(drafter, Drafter):
        name = type(drafter).__name__
        return build_plan(place, name, **arguments), name
    name = "none" if drafter is None else drafter
    return plan_of_flags(place, name, options or {}, **arguments), name


def _given_plan(
    plan: Plan | str | PathLike[str],
    drafter: str | Drafter | None,
    chosen: Speculation,
    options: Mapping[str, Any] | None,
    policy: str | Policy | None,
    loading: Mapping[str, Any],
) -> tuple[Plan, str]:
    """A plan from the user. What the plan says cannot be said by arguments as well."""
    given = {
        "verify": chosen.verify,
        "depth": chosen.depth,
        "shape": chosen.shape,
        "options": options,
        "policy": policy,
    }
    given |= {name: loading.get(name) for name in IN_PLAN} | {"drafter": None if drafter == "ngram" else drafter}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"plan and {name} are both given; the plan says all of it, so leave {name} out")
    source = str(plan) if isinstance(plan, str | PathLike) else "plan"
    checked = check_plan(load_plan(plan), DrafterCatalogue(), source)
    return checked, lower_native(checked).drafter
