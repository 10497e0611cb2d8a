"""What `plan lower` prints for each engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from slipstream.engines.emit import peer_configuration
from slipstream.plan.ir.nodes import Plan
from slipstream.plan.lower.native import lower_native
from slipstream.plan.lower.python import emit_python

EMITS = ("python", "native", "vllm", "llamacpp", "transformers")


def lowered(plan: Plan, emit: str) -> tuple[str, dict[str, Any]]:
    """The text to print, and the same as a JSON object."""
    if emit == "python":
        source = emit_python(plan)
        return source, {"emit": emit, "source": source}
    if emit == "native":
        settings = asdict(lower_native(plan))
        return json.dumps(settings, indent=2) + "\n", {"emit": emit, "settings": settings}
    if emit in EMITS:
        config = peer_configuration(plan, emit)
        return _shown(config), {"emit": emit, **config}
    raise ValueError(f"--emit is {emit!r}; it must be one of {', '.join(EMITS)}")


def _shown(config: dict[str, Any]) -> str:
    """The command that a user would type, the configuration, and what differs from the native engine."""
    lines = [f"# {note}" for note in config["notes"]]
    return "\n".join([*lines, config["command"], json.dumps(config["configuration"], indent=2)]) + "\n"
