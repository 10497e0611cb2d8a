"""The one place that joins names to classes: from what a user wrote to parts that run."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.interfaces import Drafter
from slipstream.drafters import drafters
from slipstream.drafters.draft_folder import load_draft
from slipstream.drafters.folder import head_kind, load_head
from slipstream.drafters.shipped import shipped, shipped_for
from slipstream.kernels.cpu.compile import Unavailable, build_all
from slipstream.kernels.machine import say, use_cores
from slipstream.models.compiled.background import BackgroundTask, undisturbed
from slipstream.models.compiled.package import open_package, write_package
from slipstream.models.compiled.skeleton import NotCompilable, Skeleton
from slipstream.models.run.invariant import free, why_not
from slipstream.models.run.layers import keep_layers
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources import store
from slipstream.models.sources.catalog import load_model, load_text, names_model, resolve
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.load import ModelFiles, load_config
from slipstream.models.text.codec import TextCodec, same_tokenizer
from slipstream.models.weights.gguf_model import load_restored
from slipstream.models.weights.linears import pack_linears, prepared, products, rounded, row_bits
from slipstream.models.weights.precision import SHORT, choose, choose_device

if TYPE_CHECKING:
    from slipstream.engines.native.captured.runner import CapturedRunner

Options = Mapping[str, str]
WORTH, MUCH = 1 << 25, 1 << 30  # bytes; models outside are compiled only if that is asked for: disks are not ours
SMALLER = 4  # a draft model may keep a quarter of the bytes that its target may keep for prompts that begin alike
SOON = 0.5  # seconds in which kernels are found that were compiled before


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer, and what it is, for every output."""

    found: ModelFiles
    model: TorchModel
    text: TextCodec
    weights: str | None = None  # what weights were rounded to, if they were
    trust_remote_code: bool = False  # whether code that draft models bring along may run, too

    @property
    def label(self) -> str:
        small = products(self.model.model)
        dtype = small or str(self.model.dtype).removeprefix("torch.")
        weights = self.found.weights(exact=small is not None)
        weights += f"rounded to {self.weights}, " if self.weights else ""
        return f"{self.found.name} ({weights}{dtype}{', invariant' if self.model.invariant else ''})"


@undisturbed()
def build_target(
    name: str,
    dtype: str = "auto",
    device: str = "auto",
    context: int | None = None,
    invariant: bool | None = None,
    package: bool = True,
    trust_remote_code: bool = False,
) -> Target:
    """Load a target. `invariant`: a row's numbers depend on that row alone, to the bit; None: where that is free. Where
    there is a compiled package of it on this machine, it is opened instead, and where there is none, one is written
    when there is time; without `package` neither. `trust_remote_code`: Python code that the model brings runs."""
    if name in shipped():
        target_name = read_json(shipped()[name] / "config.json").get("target")
        raise ValueError(f"{name} is a drafter; use it with its target, -m {target_name} -d {name}")
    place = choose_device(device)
    found = resolve(name, trust_remote_code=trust_remote_code)
    use_cores()
    if place == "cpu":
        _compile(8 if dtype == SHORT else 16)
    kind, whole = choose(dtype, place, kernels=True), dtype == "auto"
    wanted = kind.dtype
    packaged = package and (whole or dtype == SHORT) and place == "cpu" and wanted == torch.float32
    if not packaged:
        say(f"package: none wanted (dtype {dtype} on {place}); the model is loaded whole")
    if packaged and (ready := open_package(found, kind.row_bits)):
        model, anatomy, text = ready
        sure = True if invariant is None else invariant
        known = TorchModel(model, context=context, anatomy=anatomy, invariant=sure)
        return Target(found, known, text, kind.weights if rounded(model) else None, trust_remote_code)
    own = load_restored(found, kind.row_bits) if place == "cpu" and (whole or kind.weights) else None
    model = prepared(own or load_model(found, wanted, place), bool(invariant), whole, kind.weights, kind.row_bits)
    sure = free(model) if invariant is None else invariant
    weights = kind.weights if dtype != SHORT or rounded(model) else None
    wrapped = TorchModel(model, context=context, invariant=sure)
    target = Target(found, wrapped, load_text(found), weights, trust_remote_code)
    if packaged and WORTH <= store.size(found.path) <= MUCH:
        BackgroundTask(lambda: _write(target))
    return target


def _compile(row_bits: int) -> None:
    """Kernels for a CPU. Where they are compiled first, there is no package either, and transformers will be needed:
    one waits for a compiler while one imports."""
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(build_all, row_bits)
        if not wait([made], timeout=SOON).done:
            import_module("transformers.modeling_utils")
        made.result()


def compile_target(name: str, dtype: str = "auto") -> Path:
    """Write the compiled package of a model; ValueError where it cannot be had."""
    if dtype not in ("auto", SHORT):
        raise ValueError(f"dtype is {dtype!r}; a model is compiled for auto or {SHORT}, others are loaded whole")
    target = build_target(name, dtype, device="cpu", package=False)
    try:
        return write_package(target.found, target.model, target.text)
    except (NotCompilable, Unavailable) as error:
        raise ValueError(f"{name} cannot be compiled: {error}; it is loaded whole every time") from error


def _write(target: Target) -> None:
    """In the background nobody waits for it, and nobody is told but those who ask."""
    try:
        write_package(target.found, target.model, target.text)
    except (NotCompilable, Unavailable, store.CatalogError) as error:
        say(f"package: not written ({error})")


def express(model: TorchModel) -> CapturedRunner | None:
    """Whole cycles on a GPU, where the model runs on kernels that can be captured."""
    if model.device.type != "cuda":
        return None
    try:
        from slipstream.engines.native.captured.runner import CapturedRunner
        from slipstream.models.run.gpu_passes import GpuPasses
    except ImportError:  # no Triton
        return None
    return CapturedRunner(model, model.decoder) if isinstance(model.decoder, GpuPasses) else None


def drafter_kind(name: str) -> str:
    """The kind of drafter a name stands for. A folder may say so; whatever else may be a model is a draft model."""
    if name not in drafters.names() and (name in shipped() or names_model(name)):
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
    small = products(target.model.model) is not None and "dtype" not in known  # then of whole numbers, as the target
    if trained is not None:
        output = target.model.model.get_output_embeddings().weight.detach()
        model, ids = load_draft(trained, target.model.model, output, _config(target))
        return kind(_drafting(model, target, small), target.model.vocab, ids)  # type: ignore[no-any-return]
    trust = target.trust_remote_code
    found = resolve(known["model"], trust_remote_code=trust) if "model" in known else target.found
    difference = None if found == target.found else same_tokenizer(load_text(found).tokenizer, target.text.tokenizer)
    if difference:
        raise ValueError(f"{found.name} cannot draft for {target.found.name}: {difference}")
    dtype = known.get("dtype", str(target.model.dtype).removeprefix("torch."))
    bits = row_bits(target.model.model)
    model = (load_restored(found, bits) if small else None) or load_model(found, dtype, target.model.device)
    if "layers" in known:
        keep_layers(model, known["layers"])
    return kind(_drafting(model, target, small), target.model.vocab)  # type: ignore[no-any-return]


def _config(target: Target) -> Any:
    """The target's configuration, which a package holds only a part of."""
    return load_config(target.found) if isinstance(target.model.model, Skeleton) else target.model.model.config


def _trained(kind: str, target: Target, known: dict[str, str]) -> Path | None:
    """The folder of a trained drafter: the one asked for, or the one that is shipped for the target."""
    if "model" in known:
        folder = shipped().get(known["model"], Path(known["model"]))
        return folder if head_kind(folder) == kind else None
    return shipped_for(kind, target.found.name, target.found.sha256) if "layers" not in known else None


def _drafting(model: Any, target: Target, small: bool) -> TorchModel:
    """`small`: weights are of eight bits, rounded where they are not of few: a drafter may be any."""
    exact = target.model.invariant  # then drafts are repeatable too
    model = prepared(model, exact, weights="int8" if small else None, row_bits=row_bits(target.model.model))
    max_bytes = target.model.prefixes.max_bytes // SMALLER
    sure = exact and why_not(model) is None
    return TorchModel(model, retained=target.model.prefixes.retained, max_bytes=max_bytes, invariant=sure)


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
        whole = products(target.model.model) is not None
        pack_linears(net, integers=whole, rounded=whole, row_bits=row_bits(target.model.model))
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
