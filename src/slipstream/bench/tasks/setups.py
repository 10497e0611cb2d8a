"""The setups that a task is measured with: one model, a model with a drafter, or a route between two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.bench.engine_pool import ROWS
from slipstream.engines import engines, open_engine
from slipstream.engines.base import Engine
from slipstream.engines.cascade.request import RouteEngine, RouteOptions
from slipstream.engines.native.scheduler import Limits
from slipstream.plan.ir.check_parts import ROUTE_LEVELS
from slipstream.plan.lower.routes import TOKEN_DEPTH, token_rule


@dataclass(frozen=True)
class TaskSetup:
    """A model and how it decodes."""

    model: str
    engine: str = "native"
    drafter: str = "none"
    verify: str | None = None
    depth: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    loading: Mapping[str, Any] = field(default_factory=dict)  # dtype, device, trust_remote_code
    rows: int = 1  # problems at a time

    def open(self) -> Engine:
        """The engine. Prefix reuse is off, so that every problem is read."""
        native = self.engine == "native"
        own: dict[str, Any] = {"limits": Limits(rows=max(16, self.rows), retained=0)} if native else {}
        together = {"rows": str(self.rows)} if self.rows > 1 and self.engine in ROWS else {}
        return open_engine(
            self.engine,
            self.model,
            self.drafter,
            self.verify,
            self.depth,
            {**together, **self.options},
            **self.loading,
            **own,
        )

    def alone(self, model: str) -> TaskSetup:
        """Another model in the same engine, without a drafter."""
        return replace(self, model=model, drafter="none", verify=None, depth=None, options={})


@dataclass(frozen=True)
class RouteSetup:
    """A route from a small model to a large one."""

    level: str
    small: str
    options: RouteOptions

    def __post_init__(self) -> None:
        if self.level not in ROUTE_LEVELS:
            raise ValueError(f"route is {self.level!r}; it must be one of {', '.join(ROUTE_LEVELS)}")

    def open(self, large: TaskSetup) -> Engine:
        engines.get(large.engine)
        if self.level == "token":
            return self.token_setup(large).open()
        return RouteEngine(large.alone(self.small).open, large.open, self.options)

    def token_setup(self, large: TaskSetup) -> TaskSetup:
        """The small model writes until its largest probability is at most the threshold (the rule `bild`)."""
        if large.engine != "native":
            raise ValueError(f"the token route runs in the native engine; {large.engine} has no such rule")
        rule, depth = token_rule(self.options.threshold), large.depth or TOKEN_DEPTH
        return replace(large, drafter=self.small, verify=rule, depth=depth)
