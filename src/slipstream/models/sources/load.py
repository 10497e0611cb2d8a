"""Loading a model and its tokenizer from a folder, and describing a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream.models.sources import store
from slipstream.models.sources.folder import OWN_CODE, SPEECH, is_packed, read_json, tensors, weights_sha256
from slipstream.models.sources.progress import quiet
from slipstream.models.sources.store import CatalogError
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.precision import choose

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# names of the output matrix; if none is stored, the input embedding is the output matrix
OUTPUTS = frozenset({"lm_head.weight", "embed_out.weight"})


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine, ready to load."""

    name: str  # as the user gave it
    path: Path  # a folder of config, safetensors and tokenizer
    kind: str  # catalog, hub, folder or gguf
    sha256: str | None = None  # of the weights; None where reading them would be needed
    quantised: str | None = None  # the format the weights were rounded to before they were stored, such as Q4_1
    trust_remote_code: bool = False
    scaled: str | None = None  # how a cost-scaled target was enlarged (`scaled`)
    rounded: str | None = None  # the type that quantised weights were rounded to in this folder
    kept: bool = False  # whether all quantised weights are kept unrounded too (`gguf.weights`)

    @property
    def speech(self) -> bool:
        """Whether the model listens to audio."""
        config = self.path / "config.json"
        return config.is_file() and read_json(config).get("model_type") in SPEECH

    def weights(self, exact: bool) -> str:
        """A description of quantised weights, to stand before the type. `exact`: the unrounded ones are used."""
        if not self.quantised:
            return ""
        unrounded = self.rounded is None or (exact and self.kept)
        return f"{self.quantised} weights{'' if unrounded else f' rounded to {self.rounded}'}, "


def load_model(
    files: ModelFiles, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """The model, ready to score. `precision.choose` says which type "auto" means."""
    from transformers import AutoModelForCausalLM, AutoModelForSpeechSeq2Seq

    loader = AutoModelForSpeechSeq2Seq if files.speech else AutoModelForCausalLM
    kind = choose(dtype, device)
    if kind.row_bits != 16:
        raise ValueError(f"{dtype} is for a target; a draft model takes it from its target")
    with quiet(), _loading(files, "the weights"):
        options: dict[str, Any] = {"dtype": kind.dtype, "local_files_only": True, "output_loading_info": True}
        options["trust_remote_code"] = files.trust_remote_code
        if is_packed(files.path):
            model, info = _load_packed(files, loader, options)
        else:
            model, info = loader.from_pretrained(files.path, use_safetensors=True, **options)
    if absent := sorted(info["missing_keys"]):  # transformers would fill them with random numbers
        raise CatalogError(f"{files.name} lacks {len(absent)} weights of its architecture, {absent[0]} among them")
    return model.to(device).eval()


def _load_packed(files: ModelFiles, loader: Any, options: dict[str, Any]) -> Any:
    """The model of a folder without a safetensors file, with transformers' report on its weights."""
    from transformers import GenerationConfig

    from slipstream.models.sources.gguf.packed import read

    config = load_config(files)
    with torch.device("meta"):
        kind = type(loader.from_config(config))
    named = files.path / "generation_config.json"
    generation = GenerationConfig.from_pretrained(files.path, local_files_only=True) if named.is_file() else None
    weights = read(files.path)
    return kind.from_pretrained(None, config=config, state_dict=weights, generation_config=generation, **options)


def load_config(files: ModelFiles) -> PreTrainedConfig:
    from transformers import AutoConfig

    with quiet(), _loading(files, "the configuration"):
        return AutoConfig.from_pretrained(files.path, local_files_only=True, trust_remote_code=files.trust_remote_code)


def load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with quiet(), _loading(files, "the tokenizer"):
        return AutoTokenizer.from_pretrained(
            files.path, local_files_only=True, trust_remote_code=files.trust_remote_code
        )


def load_text(files: ModelFiles) -> TextCodec:
    """The model's tokenizer with its chat template and end tokens."""
    return TextCodec(load_tokenizer(files), configured_ends(files))


def configured_ends(files: ModelFiles) -> list[Any]:
    """The values of `eos_token_id` in a model's files."""
    configs = (files.path / name for name in ("config.json", "generation_config.json"))
    return [read_json(path).get("eos_token_id") for path in configs if path.is_file()]


@contextmanager
def _loading(files: ModelFiles, part: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # four libraries raise a dozen classes for damaged files
        if "trust_remote_code" in str(error):
            raise CatalogError(f"{part} of {files.name}: it {OWN_CODE}") from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        again = f"; `slipstream models remove {files.name}` and pull it again" if files.kind == "catalog" else ""
        raise CatalogError(f"{part} of {files.name} cannot be loaded ({reason}){again}") from error


def describe(files: ModelFiles) -> dict[str, Any]:
    """A model's properties as JSON values. The weights are not loaded; only headers and hash are read."""
    config = read_json(files.path / "config.json")
    text = load_text(files)
    inner = config.get("text_config", config)  # multimodal models have a separate configuration of the language part
    stored = tensors(files.path)
    heads = inner.get("num_attention_heads", inner.get("n_head"))
    return {
        "name": files.name,
        "path": str(files.path),
        "kind": files.kind,
        "architecture": (config.get("architectures") or [config.get("model_type")])[0],
        "layers": inner.get("num_hidden_layers", inner.get("n_layer")),
        "hidden": inner.get("hidden_size", inner.get("n_embd")),
        "heads": heads,
        "kv_heads": inner.get("num_key_value_heads", heads),
        "vocabulary": inner.get("vocab_size"),
        "context": inner.get("max_position_embeddings", inner.get("n_positions")),
        "parameters": sum(count for _, count in stored.values()),
        "dtype": "+".join(sorted({kind for kind, _ in stored.values()})),
        "quantised": files.quantised,
        "scaled": files.scaled,
        "bytes": store.size(files.path),
        "sha256": files.sha256 or weights_sha256(files.path),
        "tied": OUTPUTS.isdisjoint(stored),
        "chat_template": text.instruct,
        "ends": {str(token): text.token(token) for token in sorted(text.ends)},
    }
