"""The target of a model that the user has loaded already."""

from __future__ import annotations

import copy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.checks import shown
from slipstream.models.run.invariant import free
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.sources.load import ModelFiles
from slipstream.models.target import Target
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.linears import prepared

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODELS = "a model is a name, a folder, a GGUF file, or a loaded causal language model of transformers"


def given_target(
    model: Any, tokenizer: Any = None, context: int | None = None, invariant: bool | None = None, **loading: Any
) -> Target:
    """The target of a model that is already loaded."""
    if isinstance(model, str | PathLike):
        raise ValueError("tokenizer goes with a loaded model; a model by name brings its own")
    if loading:
        raise ValueError(f"{', '.join(loading)} cannot be given for a loaded model; load it as it is to run")
    if isinstance(model, Target):
        if (tokenizer, context, invariant) != (None, None, None):
            raise ValueError("tokenizer, context and invariant are part of a target already")
        return model
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model is {shown(model)}; {MODELS}")
    files, text = _identity(model, tokenizer)
    twin = prepared(_twin(model), bool(invariant))
    exact = free(twin) if invariant is None else invariant
    return Target(files, TorchModel(twin, context=context, invariant=exact), text)


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules and the configuration with the same weights, so that the user's model is not changed."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def _identity(model: PreTrainedModel, tokenizer: Any) -> tuple[ModelFiles, TextCodec]:
    """The files that a loaded model came from, and its tokenizer."""
    from transformers import PreTrainedTokenizerBase

    place = model.name_or_path
    try:
        files = resolve(place, fetch=False) if place else None
        text = load_text(files) if files and tokenizer is None else None
    except ValueError:
        files = text = None
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(f"tokenizer is {shown(tokenizer)}; it must be a tokenizer of transformers")
    if tokenizer is not None:
        ends = (model.config.eos_token_id, getattr(model.generation_config, "eos_token_id", None))
        text = TextCodec(tokenizer, ends)
    if text is None:
        raise ValueError(f"there is no tokenizer at the model's name_or_path, {place!r}; pass one as tokenizer=")
    return files or ModelFiles(place or type(model).__name__, Path(place), "object"), text
