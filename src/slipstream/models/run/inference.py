"""Inference mode for methods that are called for every row."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def inference(method: Callable[P, T]) -> Callable[P, T]:
    """`torch.inference_mode()`, entered only where it is not on already, as it is on an engine's thread. To enter it
    takes 6 µs, as long as to open a row."""

    @wraps(method)
    def entered(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode():
            return method(*args, **kwargs)

    return entered
