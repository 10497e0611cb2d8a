"""Cost-scaled targets: the function of a small model at the cost of a large one.

Acceptance depends on the target's distribution, and the speedup on the target's cost. If no large model is available, a
small model can be enlarged without changing its function. It then has real acceptance rates and the cost of a large
one.

- Widening by k repeats every channel, head and neuron k times. A layer reads k equal copies of its input and writes k
  equal copies of its output, with W' = W/k in each of the k × k blocks. Root mean squares do not change. The last norm
  is divided by k, because logits are summed over k copies. k is a power of two, so every weight is divided exactly and
  results differ only by the order of summation.
- Deepening adds blocks of random weights whose two output projections are zero. They cost as much as other blocks and
  add nothing.

Output, quality and acceptance are those of the small model. Only the cost is that of the larger shape.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from slipstream.core.array_types import Tensor
from slipstream.models.sources.folder import is_packed, read_json, tensors, weight_files, weights_sha256
from slipstream.models.sources.gguf import weights as gguf_weights
from slipstream.models.sources.gguf.packed import open_packed
from slipstream.models.sources.store import MANIFEST, CatalogError

NAME = re.compile(r"scaled:(?P<source>.+):(?P<width>\d+)x(?:\+(?P<layers>\d+))?")
KINDS = ("llama", "mistral", "qwen2", "qwen3")
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
SILENT = ("self_attn.o_proj.", "mlp.down_proj.")  # the projections that write to the residual stream
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
PER_HEAD = ("q_norm.weight", "k_norm.weight")
ENDS = {"input": "model.embed_tokens.weight", "norm": "model.norm.weight", "output": "lm_head.weight"}


@dataclass(frozen=True)
class CostScale:
    """How a target is enlarged: `width` times as wide, with `layers` more blocks."""

    width: int = 2
    layers: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.width & (self.width - 1) or self.width > 64:
            raise CatalogError(f"a target is scaled {self.width} times; it must be a power of two, 1 to 64")
        if self.layers > 1000:
            raise CatalogError(f"a target is to get {self.layers} more layers; it must be 0 to 1000")

    def __str__(self) -> str:
        return f"{self.width}x+{self.layers}" if self.layers else f"{self.width}x"


def parse_scaled(name: str) -> tuple[str, CostScale]:
    """`scaled:NAME:8x+5` as the name of the model and how it is scaled."""
    match = NAME.fullmatch(name)
    if match is None:
        raise CatalogError(f"{name!r} names no scaled target; write scaled:MODEL:2x or scaled:MODEL:8x+5 (more layers)")
    return match["source"], CostScale(int(match["width"]), int(match["layers"] or 0))


def room(source: Path, scale: CostScale) -> int:
    """Bytes of the scaled weights. Blocks grow along both axes, embedding, norm and head along one."""
    layers = read_json(source / "config.json").get("num_hidden_layers", 1)
    block = scale.width**2 * (1 + scale.layers / layers)
    sizes = {name: BYTES.get(kind, 4) * count for name, (kind, count) in tensors(source).items()}
    return int(sum(size * (block if LAYER.fullmatch(name) else scale.width) for name, size in sizes.items()))


def write_scaled(source: Path, folder: Path, scale: CostScale) -> dict[str, Any]:
    """Write the scaled model. Returns facts for its manifest. One block is held in memory at a time."""
    config = read_json(source / "config.json")
    check(config, source)
    order = interleaved(config["num_hidden_layers"], scale.layers)
    index: dict[str, str] = {}
    size = 0
    for number, shard in enumerate(_shards(source, scale, order)):
        file = f"model-{number:05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
        size += sum(tensor.nbytes for tensor in shard.values())
    listed = {"metadata": {"total_size": size}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed, indent=1))
    (folder / "config.json").write_text(json.dumps(scaled_config(config, scale, order), indent=1) + "\n")
    weights = {"model.safetensors.index.json", gguf_weights.FILE, *(path.name for path in weight_files(source))}
    skipped = {"config.json", MANIFEST, *weights}
    for path in source.iterdir():
        if path.is_file() and path.name not in skipped:
            shutil.copyfile(path, folder / path.name)
    count = sum(count for _, count in tensors(folder).values())
    description = (
        f"{scale.width} times as wide, {scale.layers} silent layers more, {count / 1e9:.2f}B parameters, same function"
    )
    return {"sha256": weights_sha256(folder), "scaled": description}


def check(config: dict[str, Any], source: Path) -> None:
    kind = config.get("model_type")
    if kind not in KINDS:
        raise CatalogError(f"a {kind} model cannot be scaled; only {', '.join(KINDS)} are known to keep their function")
    if config.get("use_sliding_window"):
        raise CatalogError(f"{source.name} cannot be scaled: its layers have different windows")


def interleaved(layers: int, more: int) -> list[int | None]:
    """The original blocks in order, with silent ones (None) spread evenly among them."""
    order: list[int | None] = []
    for i in range(layers):
        order += [i, *[None] * ((i + 1) * more // layers - i * more // layers)]
    return order


def scaled_config(config: dict[str, Any], scale: CostScale, order: list[int | None]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    larger = config | {"num_key_value_heads": config.get("num_key_value_heads") or heads}
    larger["head_dim"] = config.get("head_dim") or config["hidden_size"] // heads
    larger |= {name: larger[name] * scale.width for name in SIZES}
    larger["num_hidden_layers"] = len(order)
    if config.get("layer_types"):
        larger["layer_types"] = [config["layer_types"][i or 0] for i in order]
    return larger


def _shards(source: Path, scale: CostScale, order: list[int | None]) -> Iterator[dict[str, Tensor]]:
    """Embedding, norm and head first, then the blocks, each with the names that it has in the new model."""
    read, names = _reader(source)
    ends = {name: read(name) for name in ENDS.values() if name in names}
    yield {name: widened(name, tensor, scale.width) for name, tensor in ends.items()}
    noise = torch.Generator().manual_seed(0)
    for number, old in enumerate(order):
        parts = {m[2]: name for name in names if (m := LAYER.fullmatch(name)) and int(m[1]) == (old or 0)}
        block = {part: widened(part, read(name), scale.width) for part, name in parts.items()}
        if old is None:
            block = {part: _silent(part, tensor, noise) for part, tensor in block.items()}
        yield {f"model.layers.{number}.{part}": tensor for part, tensor in block.items()}


def _reader(source: Path) -> tuple[Callable[[str], Tensor], list[str]]:
    packed = open_packed(source) if is_packed(source) else None
    files = {name: path for path in weight_files(source) for name in sorted(_names(path))}

    def read(name: str) -> Tensor:
        if packed is not None:
            return packed.value(name)
        with safe_open(files[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    recognised = [name for name in files if name in ENDS.values() or LAYER.fullmatch(name)]
    if unrecognised := sorted(files.keys() - set(recognised)):
        raise CatalogError(f"{source.name} cannot be scaled: its weight {unrecognised[0]} is of no known kind")
    return read, recognised


def _names(path: Path) -> list[str]:
    with safe_open(path, "pt") as file:
        return list(file.keys())


def widened(name: str, tensor: Tensor, k: int) -> Tensor:
    """Repeat a weight k times along its axes, and divide by k where copies are summed. Checks that no digit is lost."""
    if name.endswith(PER_HEAD):
        return tensor.clone()
    if name in (ENDS["input"], ENDS["output"]):
        return tensor.repeat(1, k)
    divisor = k if tensor.ndim == 2 or name == ENDS["norm"] else 1
    small = tensor / divisor
    if not torch.equal(small * divisor, tensor):
        raise CatalogError(f"{name} is too small to be divided by {k} exactly in {tensor.dtype}")
    return small.repeat(*([k] * tensor.ndim))


def _silent(part: str, like: Tensor, noise: torch.Generator) -> Tensor:
    """Weights of a block that costs what any block costs and adds nothing to the residual stream."""
    if part.startswith(SILENT):
        return torch.zeros_like(like)
    if like.ndim == 1:
        return torch.zeros_like(like) if part.endswith("bias") else torch.ones_like(like)
    return (0.02 * torch.randn(like.shape, generator=noise)).to(like.dtype)
