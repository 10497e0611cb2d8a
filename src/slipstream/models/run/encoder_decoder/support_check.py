"""Checks whether an encoder-decoder can be run exactly: its parts have the usual names, and a few tokens give the same
logits as the model's own modules."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.core.array_types import Tensor
from slipstream.core.types import Request, Row
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import ENDLESS, KVCache
from slipstream.models.run.encoder_decoder.condition import CrossAttentionStates
from slipstream.models.run.encoder_decoder.decoder_pass import CrossDecoderPass
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.row_table import RowTable
from slipstream.models.run.support_check import PROBE, TOLERANCE, ModelAnatomy, refuse

KINDS = ("whisper",)  # model types whose decoder has the parts that `decoder_pass` names
POSITIONS = 7  # of the encoder's output in the comparison


def cross_anatomy(model: Any) -> ModelAnatomy:
    """The structure of an encoder-decoder. ValueError where it cannot be run."""
    if model.config.model_type not in KINDS:
        raise refuse(model, f"it is an encoder-decoder, and of these only {', '.join(KINDS)} is run")
    layers = list(model.get_decoder().layers)
    return ModelAnatomy(layers, dict.fromkeys(range(len(layers))), model.config.vocab_size, as_tuple=False)


def check_numbers(model: Any, states: CrossAttentionStates) -> None:
    """Raise ValueError unless a pass gives the logits of the model's own modules."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    encoded = torch.randn(POSITIONS, config.d_model, generator=generator).to(model.device, model.dtype)
    tokens = [(i * 977 + 13) % config.vocab_size for i in range(PROBE)]
    condition = states.given(torch.zeros(config.num_mel_bins, 1), encoded)
    cache = KVCache()
    rows, row = RowTable(cache, ENDLESS), Row(Request(tokens, condition=condition))
    rows.open(row, ())
    run = CrossDecoderPass(
        model, rows, FeatureStore(cache, config.decoder_layers), states, invariant=False, captured=False
    )
    piece = RowSlice(RowEntries.of(rows.states[row].index, 0, tokens))
    logits, _ = run.run([piece], run.all_layers, None, keep=torch.arange(PROBE, device=model.device))
    ids = torch.tensor([tokens], device=model.device)
    expected: Tensor = model(encoder_outputs=(encoded[None],), decoder_input_ids=ids, use_cache=False).logits[0]
    assert logits is not None
    if (logits.float() - expected.float()).norm() > TOLERANCE * expected.float().norm():
        raise refuse(model, "its logits change when its attention is replaced by an equal one")
