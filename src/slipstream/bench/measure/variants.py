"""The variants of a drafter that passes try: fewer tokens in its vocabulary, weights of 8 bits, and overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from slipstream.drafters.overlapped.lane import ONE_THREAD
from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.models.target import Target
from slipstream.models.weights.linears import products
from slipstream.models.weights.precision import choose
from slipstream.plan.passes.figures import Variant

TRIMMED = 4096  # tokens of a draft vocabulary that is tried


def drafter_variants(kind: str, options: Mapping[str, Any], target: Target) -> dict[str, Variant]:
    """By the name of the pass. A variant that this drafter cannot have says why."""
    known = DrafterCatalogue().defaults(kind)
    return {
        "trim-vocab": _trimmed(kind, known, options),
        "quantise-draft": _quantised(kind, known, options, target),
        "overlap": _overlapped(kind, target),
    }


def _trimmed(kind: str, known: Mapping[str, Any], options: Mapping[str, Any]) -> Variant:
    if "vocab" not in known:
        return Variant({}, reason=f"{kind} has no draft vocabulary that can be cut")
    if options.get("vocab") is not None:
        return Variant({}, reason=f"{kind} has vocab={options['vocab']} already")
    return Variant({"vocab": TRIMMED})


def _quantised(kind: str, known: Mapping[str, Any], options: Mapping[str, Any], target: Target) -> Variant:
    if "dtype" not in known:
        return Variant({}, reason=f"{kind} has the precision of its target")
    if options.get("dtype") is not None:
        return Variant({}, reason=f"{kind} has dtype={options['dtype']} already")
    if products(target.model.model) is not None:
        return Variant({}, reason=f"{kind} has weights of 8 bits already, because its target has integer products")
    try:
        choose("int8", target.model.device)
    except ValueError as error:
        return Variant({}, reason=str(error))
    return Variant({"dtype": "int8"})


def _overlapped(kind: str, target: Target) -> Variant:
    if DrafterCatalogue().reads_target(kind):
        return Variant({}, reason=f"{kind} drafts from what the target has computed, so it cannot overlap")
    if target.model.device.type == "cpu" and torch.get_num_threads() < 2:
        return Variant({}, reason=ONE_THREAD)
    return Variant({}, overlap=True)
