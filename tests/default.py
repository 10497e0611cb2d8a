"""The default model, loaded once however many tests ask for it."""

from __future__ import annotations

from functools import cache

from slipstream.engines.native.build import build_target
from slipstream.models.target import Target
from slipstream.models.weights.precision import EIGHT_BIT_ACTIVATIONS, EIGHT_BIT_WEIGHTS, choose


def build(
    name: str,
    dtype: str = "auto",
    device: str = "auto",
    context: int | None = None,
    invariant: bool | None = None,
    package: bool = True,
    trust_remote_code: bool = False,
) -> Target:
    """As `build_target`, once for all who ask for the same."""
    kind = dtype if dtype in (*EIGHT_BIT_WEIGHTS, EIGHT_BIT_ACTIVATIONS) else str(choose(dtype, kernels=True))
    return _built(name, kind, device, context, invariant, package, trust_remote_code)


_built = cache(build_target)


def target() -> Target:
    return build("smollm2-135m")
