"""Converts Whisper exported to ONNX, with float or 8-bit weights, to a folder of safetensors.

The export holds an encoder and a decoder, in a subfolder `onnx`, beside the configuration and the tokenizer. Weights of
matrix products lost their names; the name of the node that uses each says what it is. 8-bit weights are dequantised by
their own scale and zero point, and matrices are stored in bfloat16, which the CPU kernels read in two bytes.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from slipstream.models.sources.store import CatalogError, sha256
from slipstream.models.sources.whisper.onnx_reader import OnnxGraph, read_onnx

ENCODERS = ("encoder_model_quantized.onnx", "encoder_model.onnx")
DECODERS = ("decoder_model_merged_quantized.onnx", "decoder_model_merged.onnx")
MERGED = re.compile(r"_merged_\d+$")  # the mark of weights that two graphs of a merged decoder share
KEPT = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "normalizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def onnx_folder(path: Path) -> Path | None:
    """The folder of an exported model: `path`, or the one folder inside it that holds one; None if there is none."""
    if (path / "model.safetensors").exists() or (path / "model.safetensors.index.json").exists():
        return None
    exported = sorted({file.parent.parent for name in ENCODERS for file in path.rglob(f"onnx/{name}")})
    return exported[0] if len(exported) == 1 and (exported[0] / "config.json").is_file() else None


def onnx_files(folder: Path) -> tuple[Path, Path]:
    """The encoder and the decoder of an exported model."""
    encoder, decoder = (
        next((folder / "onnx" / name for name in names if (folder / "onnx" / name).is_file()), None)
        for names in (ENCODERS, DECODERS)
    )
    if encoder is None or decoder is None:
        raise CatalogError(
            f"{folder} holds an incomplete ONNX export; it needs onnx/{DECODERS[0]} or onnx/{DECODERS[1]}"
        )
    return encoder, decoder


def convert_onnx(folder: Path, target: Path) -> dict[str, Any]:
    """Write the model of an exported folder to `target`. Returns what the manifest says of it."""
    encoder, decoder = onnx_files(folder)
    weights = _weights(read_onnx(encoder), "model.encoder.") | _weights(read_onnx(decoder), "")
    weights = {name: weight.bfloat16() if weight.ndim > 1 else weight for name, weight in weights.items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    for name in KEPT:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    quantised = "int8" if "quantized" in decoder.name else None
    return {"quantised": quantised, "rounded": "bfloat16", "source_sha256": [sha256(encoder), sha256(decoder)]}


def _weights(graph: OnnxGraph, prefix: str) -> dict[str, torch.Tensor]:
    """The model's weights by the names that transformers gives them."""
    weights: dict[str, torch.Tensor] = {}
    for name in graph.constants:
        own = MERGED.sub("", name.removesuffix("_quantized"))
        if own.endswith((".weight", ".bias")):
            weights[prefix + own] = _tensor(graph, name)
    for node in graph.nodes:
        if node.kind in ("MatMulInteger", "MatMul") and node.inputs[1] in graph.constants:
            path = node.name.strip("/").rpartition("/")[0].replace("/", ".")
            weights[f"{prefix}{path}.weight"] = _tensor(graph, node.inputs[1]).T.contiguous()
    return weights


def _tensor(graph: OnnxGraph, name: str) -> torch.Tensor:
    """A constant, dequantised where it is stored in 8 bits."""
    values: NDArray[Any] = graph.constants[name]
    base = name.removesuffix("_quantized")
    if base != name:
        scale, zero = (graph.constants[f"{base}_{part}"].astype(np.float32) for part in ("scale", "zero_point"))
        values = (values.astype(np.float32) - zero) * scale
    return torch.from_numpy(values.astype(np.float32))
