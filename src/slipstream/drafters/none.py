"""The drafter of plain decoding: it never drafts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.law import OneHot
from slipstream.core.noise import Noise
from slipstream.core.registry import NoOptions
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.device.interface import DeviceDrafter, PlainDecoding


class NoDrafter(Drafter):
    """Proposes empty drafts."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    @classmethod
    def build(cls, target: TargetModel, options: NoOptions) -> NoDrafter:
        return cls(target.vocab)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        return empty_draft(len(rows), self.vocab)

    def device_form(self, target: Any) -> DeviceDrafter:
        return PlainDecoding()


@cache
def empty_draft(rows: int, vocab: int) -> Draft:
    """A draft without tokens, cached by its size."""
    none = torch.zeros(0, dtype=torch.long)
    return Draft(Tree.chains([0] * rows), none, OneHot(none, vocab))
