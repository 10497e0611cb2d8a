"""Drafters: the cheap guesses, by name."""

from __future__ import annotations

from slipstream.core.interfaces import Drafter
from slipstream.core.registry import Registry

drafters: Registry[Drafter] = Registry(
    "drafter",
    {
        "none": "slipstream.drafters.none:NoDrafter",
        "ngram": "slipstream.drafters.ngram:NGram",
        "table": "slipstream.drafters.table:TableDrafter",
        "draft_model": "slipstream.drafters.draft_model:DraftModel",
        "eagle": "slipstream.drafters.eagle:Eagle",
    },
)
