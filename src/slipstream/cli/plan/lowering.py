"""What `plan lower` prints for each engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from slipstream.engines.emit import peer_configuration
from slipstream.plan.ir.nodes import Plan, PlanError
from slipstream.plan.lower.native import lower_native
from slipstream.plan.lower.python import emit_python
from slipstream.plan.lower.routes import request_route, route_plans

EMITS = ("python", "native", "vllm", "llamacpp", "transformers")


def lowered(plan: Plan, emit: str, source: str = "plan") -> tuple[str, dict[str, Any]]:
    """The text to print, and the same as a JSON object. `source`: the plan's file in errors."""
    try:
        return _lowered(plan, emit)
    except PlanError as error:
        raise PlanError(error.message, error.position, source) from None


def _lowered(plan: Plan, emit: str) -> tuple[str, dict[str, Any]]:
    if emit == "python":
        source = emit_python(plan)
        return source, {"emit": emit, "source": source}
    if emit == "native":
        settings = _native(plan)
        return json.dumps(settings, indent=2) + "\n", {"emit": emit, "settings": settings}
    if emit in EMITS:
        config = peer_configuration(plan, emit)
        return _shown(config), {"emit": emit, **config}
    raise ValueError(f"--emit is {emit!r}; it must be one of {', '.join(EMITS)}")


def _native(plan: Plan) -> dict[str, Any]:
    """The settings of the native engine, or of the two engines of a route."""
    if (route := request_route(plan)) is None:
        return asdict(lower_native(plan))
    small, large = (asdict(lower_native(part)) for part in route_plans(plan))
    return {"route": {"threshold": route.threshold, "score": route.score}, "small": small, "large": large}


def _shown(config: dict[str, Any]) -> str:
    """The command that a user would type, the configuration, and what differs from the native engine."""
    lines = [f"# {note}" for note in config["notes"]]
    return "\n".join([*lines, config["command"], json.dumps(config["configuration"], indent=2)]) + "\n"
