"""Calls that must come to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What `call` returns or raises; TimeoutError where it does neither in time. Its thread is left behind then."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)
