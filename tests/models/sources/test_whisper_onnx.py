"""Whisper exported to ONNX with 8-bit weights becomes a folder of safetensors, weight by weight."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import whispers
from slipstream.models.sources.resolve import resolve
from slipstream.models.sources.store import CatalogError

GRAPH, NODE, INITIALIZER = 7, 1, 5


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def put(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def constant(name: str, values: np.ndarray) -> bytes:
    kind = {"float32": 1, "uint8": 2}[values.dtype.name]
    dims = b"".join(put(1, size) for size in values.shape)
    return put(INITIALIZER, dims + put(2, kind) + put(8, name) + put(9, values.tobytes()))


def export(weights: dict[str, torch.Tensor], merged: str, root: str) -> bytes:
    """A graph as the exporter writes it: products of matrices lose their names, and all matrices have 8 bits."""
    graph = b""
    for count, (name, weight) in enumerate(weights.items()):
        if weight.ndim == 1 or "embed_positions" in name:
            graph += constant(f"{name}{merged}", weight.numpy())
            continue
        linear = weight.ndim == 2 and "embed_tokens" not in name
        own = f"onnx::MatMul_{count}" if linear else name
        scale = np.float32((weight.max() - weight.min()) / 255)
        zero = np.uint8(np.clip(round(float(-weight.min() / scale)), 0, 255))
        numbers = np.clip(np.round(weight.numpy() / scale) + zero, 0, 255).astype(np.uint8)
        graph += constant(f"{own}{merged}_quantized", np.ascontiguousarray(numbers.T if linear else numbers))
        graph += constant(f"{own}{merged}_scale", np.array(scale)) + constant(
            f"{own}{merged}_zero_point", np.array(zero)
        )
        weights[name] = torch.from_numpy((numbers.astype(np.float32) - np.float32(zero)) * scale).bfloat16()
        if linear:
            path = f"{root}{name.removesuffix('.weight').replace('.', '/').replace('layers/', 'layers.')}"
            node = put(1, "x") + put(1, f"{own}{merged}_quantized") + put(3, f"{path}/MatMul_quant")
            graph += put(NODE, node + put(4, "MatMulInteger"))
    return put(GRAPH, graph)


@pytest.fixture
def exported(tmp_path, monkeypatch) -> tuple[Path, dict[str, torch.Tensor]]:
    """A package with an export inside, and the weights that it stands for."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    folder = whispers.write(tmp_path / "package" / "models" / "tiny")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    parts = [{n.removeprefix("model.encoder."): w for n, w in weights.items() if n.startswith("model.encoder.")}]
    parts += [{n: w for n, w in weights.items() if n.startswith("model.decoder.")}]
    (folder / "onnx" / "encoder_model_quantized.onnx").write_bytes(export(parts[0], "", "/"))
    (folder / "onnx" / "decoder_model_merged_quantized.onnx").write_bytes(export(parts[1], "_merged_0", "/"))
    return tmp_path / "package", {f"model.encoder.{name}": weight for name, weight in parts[0].items()} | parts[1]


def test_every_weight_is_found_and_dequantised(exported):
    package, expected = exported
    files = resolve(str(package))
    stored = load_file(files.path / "model.safetensors")
    assert stored.keys() == expected.keys()
    assert all(
        torch.equal(stored[name].float(), weight.to(stored[name].dtype).float()) for name, weight in expected.items()
    )
    assert (files.quantised, files.rounded, files.speech) == ("int8", "bfloat16", True)
    assert resolve(str(package)).path == files.path  # converted once
    assert len(files.sha256 or "") == 64


def test_broken_exports_are_refused(exported):
    package, _ = exported
    decoder = package / "models" / "tiny" / "onnx" / "decoder_model_merged_quantized.onnx"
    decoder.write_bytes(decoder.read_bytes()[:-100])
    with pytest.raises(CatalogError, match="is not a readable ONNX file"):
        resolve(str(package))
    decoder.unlink()
    with pytest.raises(CatalogError, match="incomplete ONNX export"):
        resolve(str(package))
    shutil.rmtree(package / "models" / "tiny" / "onnx")
    with pytest.raises(CatalogError, match=r"has no config\.json"):
        resolve(str(package))
