"""Loads a target's draft model: another model, a distilled one, some of the target's layers, or the target itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.array_types import Int, Tensor
from slipstream.core.interfaces import TargetModel
from slipstream.drafters.files.draft_folder import load_draft
from slipstream.drafters.files.folder import trained_kind
from slipstream.drafters.files.net_folder import check_target
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.drafters.temperature import DraftTemperature
from slipstream.drafters.translated.map_cache import token_map
from slipstream.kernels.machine import warn
from slipstream.models.compiled.skeleton import Skeleton
from slipstream.models.run.invariant import why_not
from slipstream.models.run.layers import keep_layers
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.catalog import load_model, load_text, resolve
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.gguf.model import load_restored
from slipstream.models.sources.load import ModelFiles, load_config
from slipstream.models.text.codec import TextCodec, same_tokenizer
from slipstream.models.text.token_map import TokenMap
from slipstream.models.weights.linears import prepared, products, row_bits
from slipstream.models.weights.precision import choose

LEAST_SHARE = 0.05  # of the target's tokens, that a draft model with another tokenizer must have
PREFIX_SHARE = 4  # what a draft model retains of closed rows has a quarter of the bytes of its target's


@dataclass(frozen=True)
class DraftModelOptions(DraftTemperature):
    """The options of `draft_model`."""

    model: str | None = None  # a model's name or folder; default: the one shipped for the target, else the target
    layers: str | None = None  # of that model, such as 0-9; the others are left out
    dtype: str | None = None  # default: the target's; int8 and fp8 round the weights to 8 bits
    level: str = "token"  # for another tokenizer: draw common tokens (token), or draft greedy text (string)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level not in ("token", "string"):
            raise ValueError(f"option level of draft_model is {self.level!r}; it must be token or string")


@dataclass(frozen=True, eq=False)
class LoadedDraft:
    """A draft model that is ready to run."""

    model: TorchModel
    ids: Int[Tensor, " draft_vocab"] | None = None  # token id of each logit; None: the first ids of the vocabulary
    files: ModelFiles | None = None  # where it is stored; None for a distilled one
    text: TextCodec | None = None  # its tokenizer, if it is not the target's
    tokens: TokenMap | None = None  # what both tokenizers have in common; None if that is not needed


def load_draft_model(target: TargetModel, options: DraftModelOptions) -> LoadedDraft:
    """The draft model that the options name, or the target's own."""
    integers = products(target.model.model) is not None and options.dtype is None  # integer products, as in the target
    rounding = "int8" if integers else choose(options.dtype or "auto", target.model.device).weights
    trained = _trained_folder(target, options)
    if trained is not None:
        if options.level == "string":
            raise ValueError("level is string, and a distilled draft model has the target's tokenizer; leave it out")
        check_target(trained, target)
        model, ids = load_draft(trained, target.model.model, target.output, _config(target))
        return LoadedDraft(_wrapped(model, target, rounding), ids)
    files = _named_files(target, options)
    check_speech(target, files)
    text = None if files == target.files else load_text(files)
    if text is not None and same_tokenizer(text.tokenizer, target.text.tokenizer) is None:
        text = None
    if text is not None and files.speech:
        raise ValueError(f"{files.name} cannot draft for {target.files.name}: its vocabulary is another one")
    if text is None and options.level == "string":
        raise ValueError(f"level is string, and {files.name} has the target's tokenizer; leave the option out")
    tokens = None if text is None or options.level == "string" else _common_tokens(target, files, text)
    model = _full_vocabulary_model(target, files, options, integers)
    return LoadedDraft(_wrapped(model, target, rounding), None, files, text, tokens)


def _trained_folder(target: TargetModel, options: DraftModelOptions) -> Path | None:
    """The folder of a distilled draft model: the one asked for, or the one that is shipped for the target."""
    if options.model is not None:
        folder = shipped().get(options.model, Path(options.model))
        return folder if trained_kind(folder) == "draft_model" else None
    if options.layers is not None:
        return None
    return shipped_for("draft_model", target.files.name, target.files.sha256)


def _config(target: TargetModel) -> Any:
    """The target's full configuration. A compiled package holds only a part of it."""
    model = target.model.model
    return load_config(target.files) if isinstance(model, Skeleton) else model.config


def _named_files(target: TargetModel, options: DraftModelOptions) -> ModelFiles:
    if options.model is not None:
        return resolve(options.model, trust_remote_code=target.trust_remote_code)
    files: ModelFiles = target.files
    return files


def check_speech(target: TargetModel, files: ModelFiles) -> None:
    """Raise ValueError unless draft model and target both read text, or both read the same audio features."""
    heard = [
        read_json(model.path / "config.json").get("num_mel_bins") if model.speech else None
        for model in (files, target.files)
    ]
    if heard[0] == heard[1]:
        return
    draft, own = (f"reads audio of {bins} mel bins" if bins else "reads text only" for bins in heard)
    raise ValueError(f"{files.name} cannot draft for {target.files.name}: it {draft}, and its target {own}")


def _common_tokens(target: TargetModel, files: ModelFiles, text: TextCodec) -> TokenMap:
    """What the vocabularies of a draft model and its target have in common. ValueError if that is too little."""
    tokens = token_map(target.text, text)
    share = f"{tokens.share:.1%} of the target's tokens"
    if tokens.share < LEAST_SHARE:
        raise ValueError(
            f"{files.name} cannot draft for {target.files.name}: it has another tokenizer, which has {share}; at least "
            f"{LEAST_SHARE:.0%} are needed"
        )
    warn(f"{files.name} has another tokenizer than {target.files.name}, so it drafts {share}")
    return tokens


def _full_vocabulary_model(target: TargetModel, files: ModelFiles, options: DraftModelOptions, integers: bool) -> Any:
    """Another model with its whole vocabulary, or the target itself, loaded a second time."""
    dtype = options.dtype or str(target.model.dtype).removeprefix("torch.")
    restored = load_restored(files, row_bits(target.model.model)) if integers else None
    model = restored or load_model(files, dtype, target.model.device)
    if options.layers is not None:
        keep_layers(model, options.layers)
    return model


def _wrapped(model: Any, target: TargetModel, rounding: str | None) -> TorchModel:
    """Wrap the model for drafting. `rounding`: the type of 8 bits that all weights are rounded to, or None."""
    exact = target.model.invariant  # drafts of an invariant target are repeatable, too
    model = prepared(model, exact, weights=rounding, row_bits=row_bits(target.model.model))
    retained = target.model.prefixes.retained
    invariant = exact and why_not(model) is None
    max_bytes = retained.max_bytes // PREFIX_SHARE
    return TorchModel(model, retained=retained.max_tokens, max_bytes=max_bytes, invariant=invariant)
