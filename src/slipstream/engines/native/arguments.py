"""Checks the types of the engine's arguments, and accepts loaded objects in place of names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from difflib import get_close_matches
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.checks import shown
from slipstream.core.interfaces import Drafter, Policy
from slipstream.drafters.build import drafter_kind
from slipstream.engines.native.scheduler import Limits
from slipstream.models.load_target import load_target
from slipstream.models.run.invariant import free
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.sources.load import ModelFiles
from slipstream.models.target import Target
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.linears import prepared
from slipstream.plan import policies

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODELS = "a model is a name, a folder, a GGUF file, or a loaded causal language model of transformers"
LOADING = (*list(signature(load_target).parameters)[1:], "tokenizer")
OPTIONS = ("model", "drafter", "verify", "depth", "shape", "options", "limits", "watch", "policy", *LOADING)
OTHER_NAMES = {"tree": "shape", "rule": "verify", "temperature": "Sampling(temperature=…) in a request"}


def check_types(drafter: Any, options: Any, limits: Any, watch: Any, loading: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments of the wrong type and for unknown options."""
    for name in loading:
        if name not in LOADING:
            near = OTHER_NAMES.get(name) or next(iter(get_close_matches(name, OPTIONS, 1)), None)
            hint = f"; use {near}" if near else ""
            raise ValueError(f"the engine has no option {name!r}; it takes {', '.join(OPTIONS)}{hint}")
    if not isinstance(drafter, str | Drafter | None):
        raise ValueError(f"drafter is {shown(drafter)}; it must be a name, a Drafter, or None for plain decoding")
    if not isinstance(options, Mapping | None):
        raise ValueError(f"options is {shown(options)}; it must be a dictionary of the drafter's own options")
    if options and isinstance(drafter, Drafter):
        raise ValueError(f"options is {shown(options)}; a drafter given as an object takes none")
    if not isinstance(limits, Limits | None):
        raise ValueError(f"limits is {shown(limits)}; it must be Limits(rows=…, tokens=…, …)")
    if watch is not None and not callable(watch):
        raise ValueError(f"watch is {shown(watch)}; it must be a function of a draft, a law and a verdict")


def chosen_policy(chosen: str | Policy | None) -> Policy:
    """The policy with a registered name, by default `adaptive`. A `Policy` object is returned unchanged."""
    if chosen is None or isinstance(chosen, str):
        return policies.get(chosen or "adaptive").build()
    if not callable(getattr(chosen, "budget", None)):
        raise ValueError(f"policy is {shown(chosen)}; it must be a Policy or one of {', '.join(policies)}")
    return chosen


def given_drafter(drafter: str | Drafter | None) -> tuple[str, Drafter | None]:
    """The name of the engine's own drafter in requests, and the drafter itself if it was passed as an object."""
    if isinstance(drafter, Drafter):
        return type(drafter).__name__, drafter
    name = "none" if drafter is None else drafter
    drafter_kind(name)
    return name, None


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
