"""Loads targets by name, folder or file, and writes and opens their compiled packages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from pathlib import Path

import torch

from slipstream.kernels import collector
from slipstream.kernels.cpu.compile import Unavailable, build_all
from slipstream.kernels.machine import say, use_cores
from slipstream.models.compiled.background import BackgroundTask
from slipstream.models.compiled.package import open_package, write_package
from slipstream.models.compiled.skeleton import NotCompilable
from slipstream.models.run.invariant import free
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources import store
from slipstream.models.sources.catalog import load_model, load_text, resolve
from slipstream.models.sources.gguf.model import load_restored
from slipstream.models.target import Target
from slipstream.models.weights.linears import prepared, rounded
from slipstream.models.weights.precision import EIGHT_BIT_ACTIVATIONS, choose, choose_device

WORTH, MUCH = 1 << 25, 1 << 30  # bytes; models of other sizes are packaged only on request, to save disk space
SOON = 0.5  # seconds; kernels that were compiled before are loaded in less


@collector.paused()
def load_target(
    name: str,
    dtype: str = "auto",
    device: str = "auto",
    context: int | None = None,
    invariant: bool | None = None,
    package: bool = True,
    trust_remote_code: bool = False,
) -> Target:
    """Load a target.

    `invariant`: the numbers of a row depend on that row alone, to the bit; None: if that costs nothing. `package`: open
    the model's compiled package if there is one, and otherwise write one in the background. `trust_remote_code`: run
    Python code from the model's repository."""
    place = choose_device(device)
    files = resolve(name, trust_remote_code=trust_remote_code)
    use_cores()
    if place == "cpu":
        _compile(8 if dtype == EIGHT_BIT_ACTIVATIONS else 16)
    kind, whole = choose(dtype, place, kernels=True), dtype == "auto"
    package = package and not files.speech
    wanted = kind.dtype
    packaged = package and (whole or dtype == EIGHT_BIT_ACTIVATIONS) and place == "cpu" and wanted == torch.float32
    if not packaged:
        say(f"package: none wanted (dtype {dtype} on {place}); the model is loaded whole")
    if packaged and (ready := open_package(files, kind.row_bits)):
        model, anatomy, text = ready
        sure = True if invariant is None else invariant
        opened = TorchModel(model, context=context, anatomy=anatomy, invariant=sure)
        return Target(files, opened, text, kind.weights if rounded(model) else None, trust_remote_code)
    own = load_restored(files, kind.row_bits) if place == "cpu" and (whole or kind.weights) else None
    model = prepared(own or load_model(files, wanted, place), bool(invariant), whole, kind.weights, kind.row_bits)
    sure = free(model) if invariant is None else invariant
    weights = kind.weights if dtype != EIGHT_BIT_ACTIVATIONS or rounded(model) else None
    wrapped = TorchModel(model, context=context, invariant=sure)
    target = Target(files, wrapped, load_text(files), weights, trust_remote_code)
    if packaged and WORTH <= store.size(files.path) <= MUCH:
        BackgroundTask(lambda: _write(target))
    return target


def _compile(row_bits: int) -> None:
    """Load the CPU kernels. If they must be compiled first, transformers is imported at the same time: without compiled
    kernels there is no package, so it will be needed."""
    with ThreadPoolExecutor(1) as pool:
        compilation = pool.submit(build_all, row_bits)
        if not wait([compilation], timeout=SOON).done:
            import_module("transformers.modeling_utils")
        compilation.result()


def compile_target(name: str, dtype: str = "auto") -> Path:
    """Write the compiled package of a model. ValueError if the model cannot be compiled."""
    if dtype not in ("auto", EIGHT_BIT_ACTIVATIONS):
        raise ValueError(
            f"dtype is {dtype!r}; a model is compiled for auto or {EIGHT_BIT_ACTIVATIONS}, others are loaded whole"
        )
    target = load_target(name, dtype, device="cpu", package=False)
    try:
        return write_package(target.files, target.model, target.text)
    except (NotCompilable, Unavailable) as error:
        raise ValueError(f"{name} cannot be compiled: {error}; it is loaded whole every time") from error


def _write(target: Target) -> None:
    """Write the package in the background. Failures are only in the debug output."""
    try:
        write_package(target.files, target.model, target.text)
    except (NotCompilable, Unavailable, store.CatalogError) as error:
        say(f"package: not written ({error})")
