"""From a folder to a model and its text, and what a model is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream.models.sources import store
from slipstream.models.sources.folder import OWN_CODE, read_json, tensors, weights_sha256
from slipstream.models.sources.progress import quiet
from slipstream.models.sources.store import CatalogError
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.precision import choose

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

OUTPUTS = frozenset({"lm_head.weight", "embed_out.weight"})  # where these are not stored, the input matrix serves


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine, ready to load."""

    name: str  # as asked for
    path: Path  # a folder of config, safetensors and tokenizer
    kind: str  # catalog, hub, folder or gguf
    sha256: str | None = None  # of the weights, where it is known without reading them
    quantised: str | None = None  # the format the weights were rounded to before they were stored, such as Q4_1
    trust_remote_code: bool = False
    scaled: str | None = None  # how a cost-scaled target was made larger than the model it says the words of
    rounded: str | None = None  # the type that quantised weights were rounded to when they were written here
    kept: bool = False  # whether all of them lie there as they were, too (`kept`)

    def weights(self, exact: bool) -> str:
        """What is to be said of the weights of a quantised model, before its type; `exact`: those kept are used."""
        if not self.quantised:
            return ""
        whole = self.rounded is None or (exact and self.kept)
        return f"{self.quantised} weights{'' if whole else f' rounded to {self.rounded}'}, "


def load_model(
    found: ModelFiles, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """The model, ready to score; `precision.choose` says which type "auto" means here, and why."""
    from transformers import AutoModelForCausalLM

    kind = choose(dtype, device)
    if kind.row_bits != 16:
        raise ValueError(f"{dtype} is for a target; a draft model takes it from its target, and other types by name")
    with quiet(), _loading(found, "the weights"):
        model, info = AutoModelForCausalLM.from_pretrained(
            found.path,
            dtype=kind.dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=found.trust_remote_code,
            output_loading_info=True,
        )
    if absent := sorted(info["missing_keys"]):  # transformers would fill them with random numbers
        raise CatalogError(f"{found.name} lacks {len(absent)} weights of its architecture, {absent[0]} among them")
    return model.to(device).eval()


def load_config(found: ModelFiles) -> PreTrainedConfig:
    from transformers import AutoConfig

    with quiet(), _loading(found, "the configuration"):
        return AutoConfig.from_pretrained(found.path, local_files_only=True, trust_remote_code=found.trust_remote_code)


def load_tokenizer(found: ModelFiles) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with quiet(), _loading(found, "the tokenizer"):
        return AutoTokenizer.from_pretrained(
            found.path, local_files_only=True, trust_remote_code=found.trust_remote_code
        )


def load_text(found: ModelFiles) -> TextCodec:
    """The model's tokenizer with its chat template and end tokens."""
    return TextCodec(load_tokenizer(found), configured_ends(found))


def configured_ends(found: ModelFiles) -> list[Any]:
    """The end tokens that a model's files name, each as they put it."""
    files = (found.path / name for name in ("config.json", "generation_config.json"))
    return [read_json(path).get("eos_token_id") for path in files if path.is_file()]


@contextmanager
def _loading(found: ModelFiles, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged file shows as any of a dozen classes, of four libraries
        if "trust_remote_code" in str(error):
            raise CatalogError(f"{what} of {found.name}: it {OWN_CODE}") from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        again = f"; `slipstream models remove {found.name}` and pull it again" if found.kind == "catalog" else ""
        raise CatalogError(f"{what} of {found.name} cannot be loaded ({reason}){again}") from error


def describe(found: ModelFiles) -> dict[str, Any]:
    """Plain values, fit for JSON; the weights are not loaded, only their headers and hash are read."""
    config = read_json(found.path / "config.json")
    text = load_text(found)
    inner = config.get("text_config", config)  # models that also see or hear keep the language part apart
    stored = tensors(found.path)
    heads = inner.get("num_attention_heads", inner.get("n_head"))
    return {
        "name": found.name,
        "path": str(found.path),
        "kind": found.kind,
        "architecture": (config.get("architectures") or [config.get("model_type")])[0],
        "layers": inner.get("num_hidden_layers", inner.get("n_layer")),
        "hidden": inner.get("hidden_size", inner.get("n_embd")),
        "heads": heads,
        "kv_heads": inner.get("num_key_value_heads", heads),
        "vocabulary": inner.get("vocab_size"),
        "context": inner.get("max_position_embeddings", inner.get("n_positions")),
        "parameters": sum(count for _, count in stored.values()),
        "dtype": "+".join(sorted({kind for kind, _ in stored.values()})),
        "quantised": found.quantised,
        "scaled": found.scaled,
        "bytes": store.size(found.path),
        "sha256": found.sha256 or weights_sha256(found.path),
        "tied": OUTPUTS.isdisjoint(stored),
        "chat_template": text.instruct,
        "ends": {str(token): text.token(token) for token in sorted(text.ends)},
    }
