"""Refuses the arguments of `generate` that this package does not support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig

from slipstream.models.run.support_check import check_config as check_kind
from slipstream.models.run.support_check import refuse

SUPPORTED = frozenset(
    {
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings"),
        *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
        *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias", "renormalize_logits"),
        *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
        *("exponential_decay_length_penalty", "remove_invalid_values"),
        *("num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "prefill_chunk_size"),
        "disable_compile",  # nothing is compiled here
        "transformers_version",  # who wrote the file
    }
)
INSTEAD = {
    "prompt_lookup_num_tokens": "drafter='ngram' does that",
    "num_assistant_tokens": "depth says how far to draft",
    "assistant_model": "give it as drafter",
    "use_cache": "rolling back a draft needs the cache",
    "past_key_values": "give the whole text as input_ids",
}
PREPARED = frozenset({"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"})


def unsupported(name: str, value: Any) -> ValueError:
    given = f"is {value!r}" if isinstance(value, bool | int | float | str) else "is given"
    reason = INSTEAD.get(name, "slipstream does not support it; leave it out, or call generate without custom_generate")
    return ValueError(f"{name} {given}, which is refused under speculation: {reason}")


def check_config(config: Any) -> None:
    """Refuse every field that is set, known to this version of transformers and not supported here."""
    usual = vars(GenerationConfig()) | GenerationConfig._get_default_generation_params() | {"guidance_scale": 1}
    for name in sorted(usual.keys() - SUPPORTED):
        value, default = getattr(config, name, None), usual[name]
        same = value is None or value == default or (value is False and not default)
        if not (name.startswith("_") or same):
            raise unsupported(name, value)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of `generate` that transformers does not pass on to a callable."""
    for name in (
        *("assistant_model", "assistant_tokenizer", "synced_gpus", "past_key_values"),
        *("negative_prompt_ids", "negative_prompt_attention_mask"),
    ):
        if arguments.get(name) is not None and arguments[name] is not False:
            raise unsupported(name, arguments[name])


def check_inputs(inputs: Mapping[str, Any]) -> None:
    """Refuse model inputs besides the tokens, except those that transformers prepares itself."""
    for name, value in inputs.items():
        if name not in PREPARED and value is not None:
            raise unsupported(name, value)
    cache = inputs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise unsupported("past_key_values", cache)


def check_models(models: Sequence[Any]) -> None:
    """Refuse models of a kind that cannot be run exactly, and models in training mode."""
    for model in models:
        check_kind(model)
        if model.config.is_encoder_decoder:
            raise refuse(model, "it is an encoder-decoder; ss.Engine and ss.transcribe run Whisper")
        if model.training:
            raise ValueError("the model is in training mode, where dropout changes its law; call model.eval() first")
