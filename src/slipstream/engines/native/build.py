"""The one place that joins names to classes: from what a user wrote to parts that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.interfaces import Drafter
from slipstream.drafters import drafters
from slipstream.drafters.draft_folder import load_draft
from slipstream.drafters.folder import head_kind, load_head
from slipstream.drafters.shipped import shipped, shipped_for
from slipstream.kernels import cpu_linear
from slipstream.kernels.compile import build_all
from slipstream.kernels.machine import use_cores
from slipstream.models.catalog import catalog_names, load_model, load_text, resolve
from slipstream.models.invariant import free, why_not
from slipstream.models.layers import keep_layers
from slipstream.models.linears import pack_linears, products
from slipstream.models.load import Found
from slipstream.models.precision import choose
from slipstream.models.text import Text, same_tokenizer
from slipstream.models.torch_model import TorchModel

if TYPE_CHECKING:
    from slipstream.engines.native.express import Express

Options = Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer, and what it is, for every output."""

    found: Found
    model: TorchModel
    text: Text

    @property
    def label(self) -> str:
        dtype = products(self.model.model) or str(self.model.dtype).removeprefix("torch.")
        weights = f"{self.found.quantised} weights, " if self.found.quantised else ""
        return f"{self.found.name} ({weights}{dtype}{', invariant' if self.model.invariant else ''})"


def build_target(
    name: str, dtype: str = "auto", device: str = "auto", context: int | None = None, invariant: bool | None = None
) -> Target:
    """Load a target. `invariant`: a row's numbers depend on that row alone, to the bit; None: where that is free."""
    found = resolve(name)
    use_cores()
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if place == "cpu":
        build_all()
    model = load_model(found, choose(dtype, place, kernels=True).dtype, place)
    model = prepared(model, bool(invariant), whole=dtype == "auto")
    sure = free(model) if invariant is None else invariant
    return Target(found, TorchModel(model, context=context, invariant=sure), load_text(found))


def prepared(model: Any, invariant: bool = False, whole: bool = False) -> Any:
    """On a CPU, linears made for few rows take over: in float32, where they are faster, and for invariant mode. Where
    the choice is ours (`whole`), weights take as few bytes as they can: those of few bits stay in them if the processor
    multiplies whole numbers, and are rounded to bfloat16 if not."""
    if model.device.type == "cpu" and (model.dtype == torch.float32 or invariant):
        if whole and model.dtype == torch.float32 and cpu_linear.available() and not cpu_linear.has_integers():
            model = model.to(torch.bfloat16).to(torch.float32)
        pack_linears(model, integers=whole)
    return model


def express(model: TorchModel) -> Express | None:
    """Whole cycles on a GPU, where the model runs on kernels that can be captured."""
    if model.device.type != "cuda":
        return None
    try:
        from slipstream.engines.native.express import Express
        from slipstream.models.gpu_decoder import GpuDecoder
    except ImportError:  # no Triton
        return None
    return Express(model, model.decoder) if isinstance(model.decoder, GpuDecoder) else None


def drafter_kind(name: str) -> str:
    """The kind of drafter a name stands for. A folder may say so; whatever else may be a model is a draft model."""
    if name not in drafters.names() and (
        name in shipped() or "/" in name or Path(name).exists() or name in catalog_names()
    ):
        return head_kind(shipped().get(name, Path(name))) or "draft_model"
    drafters.get(name)
    return name


def build_drafter(name: str, target: Target, options: Options | None = None) -> Drafter:
    """A drafter by its name, the folder of a trained one, or a model's name or folder for a draft model."""
    options = dict(options or {})
    if drafter_kind(name) != name:
        name, options = drafter_kind(name), {"model": str(shipped().get(name, name)), **options}
    kind = drafters.get(name)
    maker = MAKERS.get(name)
    if maker is None:
        raise ValueError(f"the drafter {name} is for tests and audits; one of {', '.join(MAKERS)} drafts for a model")
    drafter = maker(kind, target, options)
    target.model.declare(drafter.needs.features)
    return drafter


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
    """Another model, one distilled from the target, some of the target's own layers (`layers=0-9`), or the target."""
    known = configured(dict, options, "draft_model", ("model", "layers", "dtype"))
    trained = _trained("draft_model", target, known)
    if trained is not None:
        output = target.model.model.get_output_embeddings().weight.detach()
        model, ids = load_draft(trained, target.model.model, output)
        return kind(_drafting(model, target), target.model.vocab, ids)  # type: ignore[no-any-return]
    found = resolve(known["model"]) if "model" in known else target.found
    difference = None if found == target.found else same_tokenizer(load_text(found).tokenizer, target.text.tokenizer)
    if difference:
        raise ValueError(f"{found.name} cannot draft for {target.found.name}: {difference}")
    dtype = known.get("dtype", str(target.model.dtype).removeprefix("torch."))
    model = load_model(found, dtype, target.model.device)
    if "layers" in known:
        keep_layers(model, known["layers"])
    return kind(_drafting(model, target), target.model.vocab)  # type: ignore[no-any-return]


def _trained(kind: str, target: Target, known: dict[str, str]) -> Path | None:
    """The folder of a trained drafter: the one asked for, or the one that is shipped for the target."""
    if "model" in known:
        folder = shipped().get(known["model"], Path(known["model"]))
        return folder if head_kind(folder) == kind else None
    return shipped_for(kind, target.found.name, target.found.sha256) if "layers" not in known else None


def _drafting(model: Any, target: Target) -> TorchModel:
    exact = target.model.invariant  # then drafts are repeatable too
    model = prepared(model, exact)
    return TorchModel(model, retained=target.model.retained, invariant=exact and why_not(model) is None)


def _eagle(kind: Any, target: Target, options: dict[str, str]) -> Drafter:
    """A trained head, from its folder."""
    known = configured(dict, options, "eagle", ("model",))
    folder = Path(known["model"]) if "model" in known else _trained("eagle", target, known)
    if folder is None:
        raise ValueError(
            f"no eagle head is shipped for {target.found.name}; `slipstream train eagle` makes one for -d FOLDER"
        )
    embedding = target.model.model.get_input_embeddings().weight.detach()
    output = target.model.model.get_output_embeddings().weight.detach()
    net, ids = load_head(shipped().get(str(folder), folder), embedding, output)
    if embedding.is_cpu and embedding.dtype == torch.float32:
        pack_linears(net, integers=products(target.model.model) is not None)
    return kind(net, ids, embedding, target.model, target.model.vocab)  # type: ignore[no-any-return]


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


MAKERS = {"none": _none, "ngram": _ngram, "draft_model": _draft_model, "eagle": _eagle}
