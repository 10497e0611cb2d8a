"""An engine on the model of letters, opened by a function that another process can import."""

from __future__ import annotations

import letters
from slipstream.engines.native.engine import NativeEngine


def open_letters(drafter: str = "ngram") -> NativeEngine:
    return NativeEngine(letters.target(), drafter)
