"""Reads the initialisers and node names of an ONNX file.

Only the wire format of protocol buffers and the few fields that hold weights are read, so the onnx package is not
needed. Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.models.sources.store import CatalogError

Field = tuple[int, "int | memoryview"]
TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 10: np.float16}  # TensorProto.DataType
MODEL_GRAPH, GRAPH_NODE, GRAPH_INITIALIZER, ATTRIBUTE_GRAPH = 7, 1, 5, 6
NODE_INPUT, NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE = 1, 3, 4, 5
DIMS, DATA_TYPE, FLOAT_DATA, INT32_DATA, INT64_DATA, NAME, RAW_DATA = 1, 2, 4, 5, 7, 8, 9


@dataclass(frozen=True)
class OnnxNode:
    """A node: its operator, its name, and the names of its inputs."""

    kind: str
    name: str
    inputs: list[str]


@dataclass
class OnnxGraph:
    """The constants and nodes of a graph and of the graphs inside it."""

    constants: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    nodes: list[OnnxNode] = field(default_factory=list)


def read_onnx(path: Path) -> OnnxGraph:
    """All initialisers and nodes of a file. CatalogError where it is no ONNX file."""
    graph = OnnxGraph()
    try:
        for number, value in _fields(memoryview(path.read_bytes())):
            if number == MODEL_GRAPH and isinstance(value, memoryview):
                _read_graph(value, graph)
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise CatalogError(f"{path} is not a readable ONNX file ({error})") from error
    if not graph.constants:
        raise CatalogError(f"{path} is not a readable ONNX file (it holds no weights)")
    return graph


def _read_graph(data: memoryview, graph: OnnxGraph) -> None:
    for number, value in _fields(data):
        if number == GRAPH_INITIALIZER and isinstance(value, memoryview):
            name, constant = _tensor(value)
            graph.constants[name] = constant
        elif number == GRAPH_NODE and isinstance(value, memoryview):
            _read_node(value, graph)


def _read_node(data: memoryview, graph: OnnxGraph) -> None:
    kind, name, inputs = "", "", []
    for number, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == NODE_INPUT:
            inputs.append(str(value, "utf-8"))
        elif number == NODE_NAME:
            name = str(value, "utf-8")
        elif number == NODE_TYPE:
            kind = str(value, "utf-8")
        elif number == NODE_ATTRIBUTE:
            for inner, part in _fields(value):
                if inner == ATTRIBUTE_GRAPH and isinstance(part, memoryview):
                    _read_graph(part, graph)
    graph.nodes.append(OnnxNode(kind, name, inputs))


def _tensor(data: memoryview) -> tuple[str, NDArray[np.generic]]:
    name, kind, shape, raw = "", 1, list[int](), b""
    for number, value in _fields(data):
        if number == DIMS:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif number == DATA_TYPE and isinstance(value, int):
            kind = value
        elif isinstance(value, memoryview):
            if number == NAME:
                name = str(value, "utf-8")
            elif number in (RAW_DATA, FLOAT_DATA):
                raw = bytes(value)
            elif number in (INT32_DATA, INT64_DATA):
                raw = np.array(_varints(value), np.uint64).astype(TYPES[kind]).tobytes()
    return name, np.frombuffer(raw, TYPES[kind]).reshape(shape)


def _fields(data: memoryview) -> Iterator[Field]:
    """Number and value of each field of a message: an integer, or the bytes of anything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(data):
            raise ValueError("it is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varints(data: memoryview) -> list[int]:
    values, at = list[int](), 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values
