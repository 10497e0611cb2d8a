"""The distance of a measurement from the machine's limits (roofline).

A pass of the target reads every weight once, and the cached keys and values of every row. A drafted token of a draft
model reads the weights of that model. So

    bytes per token = (passes × weights + cached entries read + drafted tokens × draft weights) / emitted tokens
    limit           = bandwidth / bytes per token, in tokens per second

The bandwidth is measured, by reading on a CPU and by copying on a GPU. A speed above the limit means that weights
stayed in a cache between passes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.bench.measure.measurement import Measurement
from slipstream.models.sources.folder import read_json, tensors
from slipstream.models.sources.gguf.files import gguf_file
from slipstream.models.sources.load import OUTPUTS, ModelFiles
from slipstream.models.sources.store import manifest
from slipstream.models.weights.precision import choose

SIZE = 1 << 28  # bytes read to measure bandwidth: larger than any cache
SIDE = 1024  # size of the square matrices that measure arithmetic
INPUTS = ("embed_tokens", "embed_in", "wte")
IN_LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class Machine:
    """The measured limits of a machine."""

    bandwidth: float  # bytes per second
    arithmetic: float  # floating-point operations per second, of a matrix product in the model's type

    def data(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Weights:
    """The sizes of a model."""

    read: int  # bytes that one pass reads
    per_token: int  # bytes of keys and values per cached token
    parameters: int  # parameters that a pass multiplies with


def device(name: str = "auto") -> torch.device:
    """The requested device; auto is a GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def probe_machine(dtype: str = "auto", device_name: str = "auto", size: int = SIZE) -> Machine:
    place = device(device_name)
    kind = choose(dtype, place).dtype
    return Machine(_bandwidth(place, size), _arithmetic(place, kind))


def _bandwidth(place: torch.device, size: int) -> float:
    data = torch.ones(size // 4, dtype=torch.float32, device=place)
    if place.type == "cpu":
        return size / _best(data.sum, place)
    other = torch.empty_like(data)
    return 2 * size / _best(lambda: other.copy_(data), place)


def _arithmetic(place: torch.device, dtype: torch.dtype) -> float:
    side = SIDE if place.type == "cpu" else 8 * SIDE
    a, b = (torch.ones(side, side, dtype=dtype, device=place) for _ in range(2))
    return 2 * side**3 / _best(lambda: a @ b, place)


def _best(work: Callable[[], Any], place: torch.device, times: int = 7) -> float:
    """Seconds of the fastest of several runs, after a warm-up."""
    seconds = []
    for _ in range(times + 1):
        started = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def weights_of(files: ModelFiles, dtype: str = "auto", layer_count: int | None = None) -> Weights:
    """The sizes of a model, from the headers of its weight files; no weights are loaded.

    A separate input embedding is not counted, because a pass reads only a few of its rows. `layer_count`: count only so
    many of the layers."""
    width = choose(dtype, device()).dtype.itemsize
    stored, config = tensors(files.path), _config(files.path)
    tied = OUTPUTS.isdisjoint(stored)
    layers = config.get("num_hidden_layers", config.get("n_layer", 1))
    share = min(1.0, (layer_count or layers) / layers)
    parameters = 0.0
    for name, (_, count) in stored.items():
        if tied or not any(word in name for word in INPUTS):
            parameters += count * (share if IN_LAYER.search(name) else 1.0)
    heads = config.get("num_attention_heads", config.get("n_head", 1))
    size = config.get("head_dim") or config.get("hidden_size", config.get("n_embd", 0)) // heads
    cached = 2 * layers * share * config.get("num_key_value_heads", heads) * size * width
    return Weights(int(parameters * width), int(cached), int(parameters))


def held_weights(engine: str, files: ModelFiles, label: str, dtype: str = "auto") -> Weights:
    """The sizes of the target as an engine stores it: in the precision that its label names.

    llama.cpp, and our kernels with integer products, store quantised weights as in the GGUF file. Our CPU kernels store
    bfloat16 weights in two bytes, also if they compute in float32."""
    named = next((name for name in ("bfloat16", "float16", "float32") if name in label.replace(files.name, "")), dtype)
    weights = weights_of(files, named)
    if "products" in label:
        about = manifest(files.path) or {}
        return Weights(about.get("gguf_bytes", weights.read), weights.per_token, weights.parameters)
    if engine == "native" and named == "float32" and {kind for kind, _ in tensors(files.path).values()} == {"BF16"}:
        return Weights(weights.read // 2, weights.per_token, weights.parameters)
    if engine != "llamacpp":
        return weights
    width = choose(named, device()).dtype.itemsize
    return Weights(gguf_file(files.name).stat().st_size, 2 * weights.per_token // width, weights.parameters)


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    inner: dict[str, Any] = config.get("text_config", config)
    return inner


def bytes_per_token(measurement: Measurement, target: Weights, draft: Weights | None = None) -> float:
    drafted = sum(measurement.tally.drafted) * draft.read if draft else 0
    read = measurement.passes * target.read + measurement.context * target.per_token + drafted
    return read / max(1, measurement.tally.emitted)


def intensity(measurement: Measurement, target: Weights) -> tuple[float, float]:
    """Operations per byte of the target's passes, and operations per second: a point under the roofline.

    Rejected drafts count as work."""
    scored = measurement.tally.cycles + sum(measurement.tally.drafted)
    operations = 2.0 * target.parameters * scored
    read = measurement.passes * target.read + measurement.context * target.per_token
    share = measurement.speed / measurement.tokens if measurement.tokens else 0.0  # of the run per second of decoding
    return operations / max(1, read), operations * share
