"""What `generate` may be asked for: honoured elsewhere in this package, or refused here by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig

HONOURED = frozenset(
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


def refused(name: str, value: Any) -> ValueError:
    said = f"is {value!r}" if isinstance(value, bool | int | float | str) else "is given"
    why = INSTEAD.get(name, "slipstream does not do that; leave it out, or call generate without custom_generate")
    return ValueError(f"{name} {said}, which is refused under speculation: {why}")


def check_config(config: Any) -> None:
    """Every field this version of transformers knows that is set, and that nothing here honours."""
    usual = vars(GenerationConfig()) | GenerationConfig._get_default_generation_params() | {"guidance_scale": 1}
    for name in sorted(usual.keys() - HONOURED):
        found, value = getattr(config, name, None), usual[name]
        same = found is None or found == value or (found is False and not value)
        if not (name.startswith("_") or same):
            raise refused(name, found)


def check_asked(asked: Mapping[str, Any]) -> None:
    """Arguments of `generate` that transformers does not hand on to a callable."""
    for name in (
        *("assistant_model", "assistant_tokenizer", "synced_gpus", "past_key_values"),
        *("negative_prompt_ids", "negative_prompt_attention_mask"),
    ):
        if asked.get(name) is not None and asked[name] is not False:
            raise refused(name, asked[name])


def check_inputs(inputs: Mapping[str, Any]) -> None:
    """Inputs of the model besides its tokens: those transformers made itself are known, others would be lost."""
    for name, value in inputs.items():
        if name not in PREPARED and value is not None:
            raise refused(name, value)
    cache = inputs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise refused("past_key_values", cache)


def check_ready(models: Sequence[Any]) -> None:
    for model in models:
        if model.training:
            raise ValueError("the model is in training mode, where dropout changes its law; call model.eval() first")
