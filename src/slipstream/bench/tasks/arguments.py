"""Reads the arguments of `bench --task`, which measures one setup: one value per argument, and a route or a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.tasks.run_file import CurveScope
from slipstream.bench.tasks.setups import RouteSetup, TaskSetup
from slipstream.bench.tasks.task_run import TaskLoad
from slipstream.core.sampling import Sampling
from slipstream.engines.cascade.request import RouteOptions
from slipstream.plan.ir.check_parts import ROUTE_LEVELS

MAX_TOKENS = 512  # of an answer to a problem


def route_setup(
    route: str | None, small: str | None, threshold: float | None, score: str, curve: bool
) -> RouteSetup | None:
    """The route that the arguments describe; None for one model and for a curve."""
    if curve:
        if small is None or route is not None or threshold is not None:
            raise ValueError("--curve needs --small MODEL, and neither --route nor --threshold")
        return None
    if route is None:
        if small is not None or threshold is not None:
            raise ValueError(f"--small and --threshold belong to a route; add --route {' or '.join(ROUTE_LEVELS)}")
        return None
    if small is None or threshold is None:
        raise ValueError(f"--route {route} needs {'--small MODEL' if small is None else '--threshold T'}")
    return RouteSetup(route, small, RouteOptions(threshold, score))


def curve_scope(curve: bool, limit: int | None, quality_batch: int | None, time_limit: float | None) -> CurveScope:
    """Where a curve measures quality and time. ValueError for these arguments without a curve."""
    given = {"limit": limit, "quality-batch": quality_batch, "time-limit": time_limit}
    if not curve:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"--{name} belongs to a curve; add --curve")
    return CurveScope(limit, quality_batch, time_limit)


def task_setup(
    model: str,
    engines: Sequence[str],
    drafters: Sequence[str],
    verify: str | None,
    depth: str,
    options: Mapping[str, str],
    loading: Mapping[str, Any],
    batch: str,
) -> TaskSetup:
    """The setup of the large model, from arguments that could be lists without --task."""
    return TaskSetup(
        model,
        one("engine", engines or ["native"]),
        one("drafter", drafters or ["none"]),
        verify,
        None if depth == "auto" else number("depth", depth, int),
        options,
        loading,
        number("batch", batch, int),
    )


def task_load(temperature: str, max_tokens: int | None, batch: str) -> TaskLoad:
    tokens = MAX_TOKENS if max_tokens is None else max_tokens
    return TaskLoad(Sampling(number("temperature", temperature, float)), tokens, number("batch", batch, int))


def one(name: str, values: Sequence[str]) -> str:
    """The only value of a flag. ValueError if there are several."""
    if len(values) > 1:
        raise ValueError(f"--task measures one setup, and {name} has {len(values)} values; give one")
    return values[0]


def number(name: str, text: str, kind: type[Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; with --task it must be one number") from None
