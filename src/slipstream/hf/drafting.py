"""Builds the drafter that the user named or passed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from slipstream.core.interfaces import Drafter
from slipstream.core.rules import rules
from slipstream.drafters import drafters as registry
from slipstream.drafters.build import Options, build_drafter
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan
from slipstream.engines.native.planning import choose_rule
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.sources.load import ModelFiles
from slipstream.models.target import TorchTarget
from slipstream.models.text.codec import TextCodec
from slipstream.plan.ir.nodes import AutoRule

OWN = "the drafter"  # the name under which the batch finds the user's drafter


def decoding_plan(drafter: Any, depth: int | None, verify: str | None, sampled: bool) -> DecodingPlan:
    """How every row is decoded. Sampling always has a seed here: the caller's, or one from torch's generator."""
    if depth is not None and depth < 0:
        raise ValueError(f"depth is {depth}; it must be 0 (plain decoding) or more, or None to adapt")
    if verify == "greedy" and sampled:
        raise ValueError("verify is 'greedy' and do_sample is True; use token, block or coupled for sampling")
    if verify is not None and not rules.get(verify).lossless:
        raise ValueError(f"verify is {verify!r}, which is lossy; lossy rules run in slipstream's own engine")
    rule = choose_rule(verify, AutoRule(), temperature=1.0 if sampled else 0.0, seeded=True, tree=False)
    plain = depth == 0 or drafter == "none"
    return DecodingPlan("none" if plain else OWN, rule, 0 if plain else depth)


def draft_models(drafter: Any, options: Options | None) -> list[Any]:
    """The drafter as a list, if it was passed as a model; otherwise an empty list."""
    if isinstance(drafter, str):
        return []
    if not isinstance(drafter, PreTrainedModel):
        raise ValueError(f"drafter is a {type(drafter).__name__}; give a name, or a model of transformers")
    if options:
        raise ValueError(f"options are {dict(options)}; a drafter given as a model takes none")
    return [drafter]


def drafters(
    drafter: Any, options: Options | None, target: TorchModel, models: Sequence[TorchModel], tokenizer: Any
) -> dict[str, Drafter]:
    """The drafters of the batch by name; `models` are the wrapped `draft_models`."""
    own = by_model(models[0], target) if models else by_name(drafter, options or {}, target, tokenizer)
    return {"none": NoDrafter(target.vocab), OWN: own}


def by_model(draft: TorchModel, target: TorchModel) -> Drafter:
    """Both models must share their token ids; only the size of the vocabulary can be checked here."""
    if draft.vocab != target.vocab:
        raise ValueError(
            f"the drafter has {draft.vocab} tokens and the model {target.vocab}; they must be the same ones"
        )
    if draft.device != target.device:
        raise ValueError(f"the drafter lies on {draft.device} and the model on {target.device}; move one of them")
    return DraftModel(draft, target.vocab)


def by_name(name: str, options: Options, target: TorchModel, tokenizer: Any) -> Drafter:
    """A drafter as the engine builds it. Its weights are loaded in every call."""
    if not ("/" in name or Path(name).exists()):
        registry.get(name)  # an unknown name is refused here
    return build_drafter(name, CallerTarget(target, tokenizer, name), options)


class CallerTarget(TorchTarget):
    """The caller's model as a target. Its files and its tokenizer are looked up when a drafter needs them."""

    def __init__(self, model: TorchModel, tokenizer: Any, drafter: str) -> None:
        super().__init__(model)
        self._tokenizer, self._drafter = tokenizer, drafter

    @cached_property
    def files(self) -> ModelFiles:
        folder = self.model.model.name_or_path
        if not folder:
            raise ValueError(
                f"drafter {self._drafter!r} needs the folder the model came from; give the drafter as a model"
            )
        return resolve(folder, fetch=False)

    @cached_property
    def text(self) -> TextCodec:
        return load_text(self.files) if self._tokenizer is None else TextCodec(self._tokenizer)
