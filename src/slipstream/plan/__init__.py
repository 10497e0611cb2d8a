"""Plan: decisions about drafting."""

from __future__ import annotations

from slipstream.core.interfaces import Policy
from slipstream.core.registry import Registry

policies: Registry[Policy] = Registry(
    "policy", {"adaptive": "slipstream.plan.policy.policies:Adaptive", "fixed": "slipstream.plan.policy.policies:Fixed"}
)
