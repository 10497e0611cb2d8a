"""Chooses how a draft model with another tokenizer drafts."""

from __future__ import annotations

from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.drafters.translated.drafter import TranslatedDraft
from slipstream.drafters.translated.string_drafter import StringDraft
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.text.codec import TextCodec
from slipstream.models.text.token_map import TokenMap


def build_translated(target: TargetModel, model: TorchModel, text: TextCodec, tokens: TokenMap | None) -> Drafter:
    """The drafter of a model with the tokenizer `text`. `tokens` None: it drafts strings."""
    if tokens is None:
        return StringDraft(model, target.vocab, target.text, text)
    return TranslatedDraft(model, target.vocab, tokens, target.text, text)
