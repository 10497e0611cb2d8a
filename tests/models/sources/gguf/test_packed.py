"""Folders that hold the blocks of a GGUF file in place of float32 weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gguf_files import write_gguf
from slipstream.models.sources import catalog, store
from slipstream.models.sources.folder import PACKED, full_bytes, tensors, weights_sha256
from slipstream.models.sources.gguf import packed
from slipstream.models.sources.gguf.convert import _read_model
from slipstream.models.sources.load import ModelFiles


@pytest.fixture(params=["llama", "qwen2"])
def gguf(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", request.param, ["Q4_1", "Q8_0"])


@pytest.fixture
def files(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFiles:
    monkeypatch.setattr(store, "home", lambda: gguf.parent / "models")
    return catalog.resolve(str(gguf))


def test_the_weights_are_those_of_the_file_to_the_bit(gguf, files):
    assert (files.rounded, files.quantised) == (None, "Q4_K_M")
    assert not list(files.path.glob("*.safetensors"))
    assert (files.path / PACKED).stat().st_size < 1.05 * gguf.stat().st_size
    theirs = _read_model(gguf, torch.float32).state_dict()
    mine = catalog.load_model(files, "float32")
    assert mine.state_dict().keys() == theirs.keys()
    for name, value in mine.state_dict().items():
        assert torch.equal(value, theirs[name]), name
    tied = "lm_head.weight" not in tensors(files.path)
    assert (mine.lm_head.weight is mine.model.embed_tokens.weight) == tied
    half = catalog.load_model(files, "bfloat16").state_dict()
    assert all(torch.equal(half[name], value.bfloat16()) for name, value in theirs.items())


def test_the_full_file_comes_back_with_its_hash(files):
    full = catalog.full_folder(files.path)
    assert store.sha256(full / "model.safetensors") == files.sha256
    stored = load_file(full / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float32}
    assert tensors(full) == tensors(files.path)
    assert full_bytes(full) == full_bytes(files.path) == sum(value.nbytes for value in stored.values())
    ours, theirs = catalog.load_model(files, "float32"), catalog.load_model(catalog.resolve(str(full)), "float32")
    assert ours.config.to_dict() | {"_name_or_path": ""} == theirs.config.to_dict() | {"_name_or_path": ""}
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    assert catalog.full_folder(full) == full


def test_a_copy_without_a_manifest_has_the_same_hash(files, tmp_path):
    copy = Path(shutil.copytree(files.path, tmp_path / "copy"))
    (copy / store.MANIFEST).unlink()
    assert weights_sha256(copy) == files.sha256
    assert catalog.load_model(catalog.resolve(str(copy))).config.num_hidden_layers == 2


def test_folders_of_the_layout_before_are_used_as_they_are(gguf, files, monkeypatch):
    full = catalog.full_folder(files.path)
    shutil.rmtree(files.path)
    full.rename(files.path)
    about = json.loads((files.path / store.MANIFEST).read_text())
    (files.path / store.MANIFEST).write_text(json.dumps(about | {"layout": 2}))
    monkeypatch.setattr("slipstream.models.sources.resolve.convert_gguf", None)
    assert catalog.resolve(str(gguf)) == files
    assert catalog.load_model(files).config.num_hidden_layers == 2


def test_a_folder_with_other_weights_is_not_packed(gguf, files, tmp_path):
    copy = Path(shutil.copytree(catalog.full_folder(files.path), tmp_path / "copy"))
    stored = load_file(copy / "model.safetensors")
    stored["model.norm.weight"][0] += 1.0
    save_file(stored, copy / "model.safetensors", {"format": "pt"})
    before = store.sha256(copy / "model.safetensors")
    assert packed.pack(gguf, copy) == {}
    assert not (copy / PACKED).exists()
    assert store.sha256(copy / "model.safetensors") == before
