"""The one place that joins names to classes: from what a user wrote to parts that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from slipstream.core.interfaces import Drafter
from slipstream.drafters import drafters
from slipstream.models.catalog import catalog_names, load_model, load_text, resolve
from slipstream.models.load import Found
from slipstream.models.text import Text, same_tokenizer
from slipstream.models.torch_model import TorchModel

Options = Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer, and what it is, for every output."""

    found: Found
    model: TorchModel
    text: Text

    @property
    def label(self) -> str:
        dtype = str(self.model.dtype).removeprefix("torch.")
        weights = f"{self.found.quantised} weights, " if self.found.quantised else ""
        return f"{self.found.name} ({weights}{dtype}{', invariant' if self.model.invariant else ''})"


def build_target(
    name: str, dtype: str = "auto", device: str = "auto", context: int | None = None, invariant: bool = False
) -> Target:
    """Load a target. `invariant`: its numbers for a row depend on that row alone, to the bit."""
    found = resolve(name)
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    model = prepared(load_model(found, dtype, place))
    return Target(found, TorchModel(model, context=context, invariant=invariant), load_text(found))


def prepared(model: Any) -> Any:
    """On a CPU in float32, linears made for few rows take over."""
    if model.device.type == "cpu" and model.dtype == torch.float32:
        from slipstream.models.linears import pack_linears

        pack_linears(model)
    return model


def drafter_kind(name: str) -> str:
    """The kind of drafter a name stands for; anything that is no drafter but may be a model is a draft model."""
    if name not in drafters.names() and ("/" in name or Path(name).exists() or name in catalog_names()):
        return "draft_model"
    drafters.get(name)
    return name


def build_drafter(name: str, target: Target, options: Options | None = None) -> Drafter:
    """A drafter by its name, or a model's name or folder for a draft model."""
    options = dict(options or {})
    if drafter_kind(name) != name:
        name, options = "draft_model", {"model": name, **options}
    kind = drafters.get(name)
    maker = MAKERS.get(name)
    if maker is None:
        raise ValueError(f"the drafter {name} is for tests and audits; one of {', '.join(MAKERS)} drafts for a model")
    return maker(kind, target, options)


def _none(kind: Any, target: Target, options: dict[str, str]) -> Drafter:
    configured(dict, options, "none", ())
    return kind(target.model.vocab)  # type: ignore[no-any-return]


def _ngram(kind: Any, target: Target, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.ngram import NGramConfig

    if "reference" in options:
        path = Path(options["reference"])
        try:
            options["reference"] = tuple(target.text.encode(path.read_text(), raw=True))  # type: ignore[assignment]
        except OSError as error:
            raise ValueError(f"cannot read the reference {path}: {error.strerror}") from error
    return kind(target.model.vocab, configured(NGramConfig, options, "ngram"))  # type: ignore[no-any-return]


def _draft_model(kind: Any, target: Target, options: dict[str, str]) -> Drafter:
    """Another model, the target's own first layers (`layers=0-9`), or the target itself."""
    known = configured(dict, options, "draft_model", ("model", "layers", "dtype"))
    found = resolve(known["model"]) if "model" in known else target.found
    difference = None if found == target.found else same_tokenizer(load_text(found).tokenizer, target.text.tokenizer)
    if difference:
        raise ValueError(f"{found.name} cannot draft for {target.found.name}: {difference}")
    dtype = known.get("dtype", str(target.model.dtype).removeprefix("torch."))
    model = load_model(found, dtype, target.model.device)
    if "layers" in known:
        keep_layers(model, known["layers"])
    drafting = TorchModel(prepared(model), retained=target.model.retained)
    return kind(drafting, target.model.vocab)  # type: ignore[no-any-return]


def keep_layers(model: Any, spec: str) -> None:
    """Cut a model down to some of its decoder layers: `0-9`, or `0,1,28,29`."""
    stack = next((m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1), None)
    if stack is None:
        raise ValueError(f"{type(model).__name__} has no list of layers to choose from")
    try:
        ranges = [part.split("-") for part in spec.split(",")]
        chosen = [i for part in ranges for i in range(int(part[0]), int(part[-1]) + 1)]
        kept = [stack[i] for i in chosen]
    except (ValueError, IndexError) as error:
        raise ValueError(f"layers is {spec!r}; write 0-9 or 0,1,5 with layers 0 to {len(stack) - 1}") from error
    if not kept:
        raise ValueError(f"layers is {spec!r}, which is no layer; write 0-9 or 0,1,5")
    del stack[len(kept) :]
    for i, layer in enumerate(kept):
        stack[i] = layer
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i  # type: ignore[assignment]
    config = model.config.get_text_config()
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in chosen]


def configured(config: Any, options: Mapping[str, Any], name: str, legal: tuple[str, ...] | None = None) -> Any:
    """Options as the component's own config; unknown keys and unreadable values are refused by name."""
    own = {f.name: f.type for f in fields(config)} if legal is None else {}
    types: dict[str, Any] = own | dict.fromkeys(legal or (), "str")
    for key in options:
        if key not in types:
            raise ValueError(f"{name} has no option {key!r}; it takes {', '.join(types) or 'none'}")
    values = {}
    for key, value in options.items():
        try:
            values[key] = int(value) if types[key] == "int" else float(value) if types[key] == "float" else value
        except ValueError as error:
            raise ValueError(f"option {key} of {name} is {value!r}; it must be of type {types[key]}") from error
    return config(**values)


MAKERS = {"none": _none, "ngram": _ngram, "draft_model": _draft_model}
