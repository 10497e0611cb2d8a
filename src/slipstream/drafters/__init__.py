"""The drafters that can be chosen by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.registry import Registry

if TYPE_CHECKING:  # the command line names the drafters in its help, without loading torch
    from slipstream.core.interfaces import Drafter

drafters: Registry[Drafter] = Registry(
    "drafter",
    {
        "none": "slipstream.drafters.none:NoDrafter",
        "ngram": "slipstream.drafters.ngram:NGram",
        "prediction": "slipstream.drafters.prediction:Prediction",
        "suffix": "slipstream.drafters.suffix.drafter:Suffix",
        "lookahead": "slipstream.drafters.lookahead:Lookahead",
        "retrieval": "slipstream.drafters.retrieval.drafter:Retrieval",
        "draft_model": "slipstream.drafters.draft_model:DraftModel",
        "overlapped": "slipstream.drafters.overlapped.drafter:Overlapped",
        "staged": "slipstream.drafters.staged.drafter:Staged",
        "early_exit": "slipstream.drafters.early_exit:EarlyExit",
        "layer_skip": "slipstream.drafters.layer_skip.drafter:LayerSkip",
        "eagle": "slipstream.drafters.eagle.drafter:Eagle",
        "dflash": "slipstream.drafters.dflash.drafter:Dflash",
        "medusa": "slipstream.drafters.heads.medusa:Medusa",
        "mlp": "slipstream.drafters.heads.mlp:Mlp",
        "prophet": "slipstream.drafters.heads.prophet:Prophet",
    },
)
