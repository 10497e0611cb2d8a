"""The quantised weights of a GGUF file, kept unrounded beside a converted folder in bfloat16.

Any tool can load a converted folder, so its weights are bfloat16. Those of most quantised files are integers of few
bits with scales, which bfloat16 rounds. Kernels for processors with integer products read the integers directly, which
is exact and takes a third of the memory. So the file's blocks are stored beside the folder's weights, under the same
names and in the same order of rows. A block is kept only if its numbers round to the folder's, whatever its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.cpu.few_bits import QuantizedGrid
from slipstream.models.sources.folder import read_json, weight_files
from slipstream.models.weights import gguf_blocks as blocks

FILE = "few_bits.blocks"  # not .safetensors: some tools load every file of that name
KINDS = "kinds"
PLAIN = frozenset({"F32", "F16", "BF16"})
PROBE, CHUNK = 64, 1 << 13  # rows compared first; rows compared at a time
HEADS = ("num_attention_heads", "num_key_value_heads")


@final
class GgufWeights:
    """The unrounded weights of a model, by the names of its parameters."""

    def __init__(self, path: Path, kinds: dict[str, str] | None = None) -> None:
        """`kinds`: the types of the weights by name, if the file's metadata does not hold them."""
        file: Any = safe_open
        self._file = file(path, "pt")
        self.kinds: dict[str, str] = json.loads(self._file.metadata()[KINDS]) if kinds is None else kinds

    def grid(self, name: str) -> QuantizedGrid | None:
        """A quantised weight; None where it is not kept, or not quantised."""
        kind = self.kinds.get(name)
        return blocks.grid(self._file.get_tensor(name), kind) if kind in blocks.TYPES else None

    def value(self, name: str) -> Float[Tensor, "..."]:
        """A weight in float32, to the bit."""
        return _value(self._file.get_tensor(name), self.kinds[name])

    def rounds(self, name: str, weight: Float[Tensor, "..."]) -> bool:
        """Whether the first rows of a kept weight round to those of `weight`. The folder may have been overwritten."""
        return _rounds(self._file.get_slice(name)[:PROBE], self.kinds[name], weight[:PROBE])


def opened(folder: Path) -> GgufWeights | None:
    return GgufWeights(folder / FILE) if (folder / FILE).is_file() else None


def keep(gguf: Path, folder: Path) -> bool:
    """Write the weights that a folder rounded. Returns whether all of them could be kept."""
    complete, kinds = True, {}
    kept_tensors: dict[str, Tensor] = {}
    for name, raw, kind, weight in matched(gguf, folder):
        if raw is None:
            complete = False
        elif kind in blocks.TYPES or not torch.equal(_value(raw, kind), weight.float()):
            kept_tensors[name], kinds[name] = raw.contiguous(), kind
    if kept_tensors:
        save_file(kept_tensors, folder / FILE, {KINDS: json.dumps(kinds)})
    return complete


def matched(gguf: Path, folder: Path) -> Iterator[tuple[str, Tensor | None, str, Tensor]]:
    """Each weight of a folder: its name, its rows as stored in the GGUF file, their type, and the folder's numbers.

    The rows are None where the file has none that round to those numbers."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf, "c")  # torch needs writable memory, though it is not written
    file_tensors = {tensor.name: tensor for tensor in reader.tensors}
    gguf_name, heads = _names(reader), _heads(folder)
    for name, weight in _weights(folder):
        tensor = file_tensors.get(gguf_name(name))
        kind = "" if tensor is None else tensor.tensor_type.name
        yield name, None if tensor is None else _ordered(tensor.data, kind, weight, heads), kind, weight


def _names(reader: Any) -> Any:
    """A function from a checkpoint's tensor name to GGUF's name, by GGUF's own map."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = reader.fields["general.architecture"].contents()
    arch = next((arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind), None)
    layers = reader.fields.get(f"{kind}.block_count")
    if arch is None or layers is None:
        return lambda _: None
    table = get_tensor_name_map(arch, int(layers.contents()))
    return lambda name: table.get_name(name, try_suffixes=(".weight", ".bias"))


def _heads(folder: Path) -> list[int]:
    config = read_json(folder / "config.json")
    return sorted({n for name in HEADS if isinstance(n := config.get(name), int)})


def _weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (a file is no dictionary)
                yield name, file.get_tensor(name)


def _ordered(data: Any, kind: str, weight: Tensor, heads: list[int]) -> Tensor | None:
    """The rows of a GGUF tensor in the folder's order; None where they do not round to the folder's rows.

    Some architectures apply the rotary embedding to halves of a head where the file has neighbours.
    """
    if kind not in blocks.TYPES and kind not in PLAIN:
        return None
    raw, rows = torch.from_numpy(data), torch.arange(len(weight))
    orders = [rows.view(n, -1, 2).transpose(1, 2).flatten() for n in heads if len(rows) % (2 * n) == 0]
    for order in (None, *orders) if len(raw) == len(weight) else ():
        first_rows = raw[:PROBE] if order is None else raw[order[:PROBE]]
        if _rounds(first_rows, kind, weight[:PROBE]):
            all_rows = raw if order is None else raw[order]
            return all_rows if _rounds(all_rows, kind, weight) else None
    return None


def _rounds(raw: Tensor, kind: str, weight: Tensor) -> bool:
    return len(raw) == len(weight) and all(
        torch.equal(_value(raw[i : i + CHUNK], kind).to(weight.dtype), weight[i : i + CHUNK])
        for i in range(0, len(weight), CHUNK)
    )


def _value(raw: Tensor, kind: str) -> Float[Tensor, "..."]:
    if kind in blocks.TYPES:
        return blocks.grid(raw, kind).weight()
    return (raw.view(torch.bfloat16) if kind == "BF16" else raw).float()
