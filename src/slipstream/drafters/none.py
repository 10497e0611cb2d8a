"""The drafter that never drafts: plain decoding as one of the choices."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.interfaces import Drafter
from slipstream.core.noise import Noise
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.chain import pack


class NoDrafter(Drafter):
    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        return pack([[] for _ in rows], [], [], self.vocab)
