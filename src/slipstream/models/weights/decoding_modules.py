"""Which modules of a model run in every pass.

An encoder, and the projections of its output to the keys and values of cross-attention, run once per request over many
positions. They stay as the model's own modules. All other modules run over the few tokens of a cycle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

ONCE = re.compile(r"(?:^|\.)encoder(?:\.|$)|\.encoder_attn\.[kv]_proj$")  # names of modules that run once per request


def runs_in_every_pass(model: Any, name: str) -> bool:
    """Whether the module of this name runs in every pass."""
    return not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or ONCE.search(name) is None


def decoding_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that run in every pass, with their names."""
    return ((name, module) for name, module in model.named_modules() if runs_in_every_pass(model, name))
