"""One reader of a GGUF file for all who ask, which says what the file's own reader says."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from slipstream.models.sources.gguf.header import reading_once


def written(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["one", "two", "drei"])
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_read_once_whoever_asks(tmp_path):
    path, usual = written(tmp_path / "some.gguf"), gguf.GGUFReader
    own = usual(path)
    with reading_once():
        first = gguf.GGUFReader(path)
        assert gguf.GGUFReader(str(path)) is gguf.GGUFReader(path, "c") is first
        assert gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) is gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    assert gguf.GGUFReader is usual
    assert list(first.fields) == list(own.fields)
    for name, field in first.fields.items():
        assert field.contents() == own.fields[name].contents()
    assert [tensor.name for tensor in first.tensors] == ["token_embd.weight"]
    assert np.array_equal(first.tensors[0].data, own.tensors[0].data)


def test_files_are_told_apart(tmp_path):
    paths = [written(tmp_path / name) for name in ("a.gguf", "b.gguf")]
    with reading_once():
        assert gguf.GGUFReader(paths[0]) is not gguf.GGUFReader(paths[1])
