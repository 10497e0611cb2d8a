"""A quantised file's own numbers lie beside the folder that rounds them, and models on a CPU are made of those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gguf_files import KINDS, write_gguf
from slipstream.drafters.build import build_drafter
from slipstream.engines.native.build import build_target
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.models.compiled.skeleton import Skeleton
from slipstream.models.load_target import compile_target
from slipstream.models.sources import catalog
from slipstream.models.sources.gguf import model as restored
from slipstream.models.sources.gguf import weights as kept
from slipstream.models.sources.gguf.convert import _read_model
from slipstream.models.sources.gguf.weights import FILE, keep, opened
from slipstream.models.sources.load import ModelFiles
from slipstream.models.weights import gguf_blocks as blocks
from slipstream.models.weights.linears import PackedLinear

needs_integers = pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
TOKENS = torch.arange(1, 21)[None] * 13 % 256


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp(request.param) / "tiny.gguf", request.param)


@pytest.fixture(scope="module")
def files(file: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """The file converted, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.models.sources.store.home", lambda: file.parent / "models")
        return catalog.resolve(str(file))


def weights(model: Any) -> dict[str, torch.Tensor]:
    """Every weight of a model by its parameter's name, packed or not."""
    own = {name: value.detach() for name, value in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            own |= {f"{name}.weight": module.packed.unpack()}
            own |= {} if module.bias is None else {f"{name}.bias": module.bias}
    return own


def test_the_folder_is_what_it_was_with_one_more_file(file, files):
    assert (files.quantised, files.rounded, files.kept) == ("Q4_K_M", "bfloat16", True)
    assert [path.name for path in files.path.glob("*.safetensors")] == ["model.safetensors"]
    assert {value.dtype for value in load_file(files.path / "model.safetensors").values()} == {torch.bfloat16}
    own = opened(files.path)
    assert own is not None
    assert set(own.kinds.values()) == {*KINDS, "F32"}
    assert own.kinds.keys() == load_file(files.path / "model.safetensors").keys()
    catalog.load_model(files)  # as any tool does


@needs_integers
def test_a_restored_model_has_the_weights_of_the_file_to_the_bit(file, files):
    model, exact = restored.load_restored(files), _read_model(file, torch.float32)
    assert model is not None
    assert model.dtype == torch.float32
    mine, theirs = weights(model), {name: value.detach() for name, value in exact.named_parameters()}
    tied = {"lm_head.weight"} if "lm_head.weight" not in theirs else set()
    assert mine.keys() - tied == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(mine[name], value), name
    head = model.get_output_embeddings()
    assert torch.equal(head.weight, exact.get_output_embeddings().weight)
    assert all(m.packed.is_integer for m in model.modules() if isinstance(m, PackedLinear))
    assert (head.held is not None and head.held.data_ptr() == model.get_input_embeddings().weight.data_ptr()) == bool(
        tied
    )


@needs_integers
def test_logits_are_those_of_the_file_and_not_of_the_folder(file, files):
    with torch.inference_mode():
        model, exact, rounded = restored.load_restored(files), _read_model(file, torch.float32), _read(files)
        mine, theirs, others = (net(TOKENS, use_cache=False).logits for net in (model, exact, rounded))
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-4
    assert float((others - theirs).norm() / theirs.norm()) > 1e-3


def _read(files: ModelFiles) -> Any:
    return catalog.load_model(files, "float32")


@needs_integers
def test_targets_use_them_and_say_so(files, monkeypatch, capfd):
    target = build_target(str(files.path), package=False)
    words = "Q4_K_M weights, int16 x int4/int6/int8 products, invariant"
    assert target.label == f"{files.path} ({words})"
    assert target.model.decoder is not None  # its layers agree with its modules, and run as one call
    plain = build_target(str(files.path), dtype="float32")
    assert plain.label == f"{files.path} (Q4_K_M weights rounded to bfloat16, float32, invariant)"
    int8 = build_target(str(files.path), dtype="int8")
    assert {m.packed.kind for m in int8.model.model.modules() if isinstance(m, PackedLinear)} > {"int4_k", "int6_k"}
    monkeypatch.setattr(cpu_linear, "has_integers", lambda: False)
    assert restored.load_restored(files) is None


@needs_integers
def test_draft_models_use_them_too_and_layers_keep_their_own(files):
    target = build_target(str(files.path), package=False)
    for options in ({"model": str(files.path)}, {"layers": "1"}):
        drafter: Any = build_drafter("draft_model", target, options)
        small = drafter.model.model.base_model.layers[-1].mlp.down_proj.packed
        own = target.model.model.base_model.layers[1].mlp.down_proj.packed
        assert small.kind == own.kind
        assert torch.equal(small.data, own.data)
        assert len(drafter.model.model.base_model.layers) == (1 if "layers" in options else 2)


@needs_integers
def test_draft_models_of_other_weights_are_rounded_to_eight_bits_unless_told(files, tmp_path):
    for path in files.path.iterdir():
        if path.name != FILE:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    whole, wide = (build_target(str(files.path), package=False, dtype=dtype) for dtype in ("auto", "float32"))
    cases = [(whole, {}, "int8"), (whole, {"dtype": "float32"}, "bfloat16"), (wide, {}, "bfloat16")]
    for target, more, kind in cases:
        drafter: Any = build_drafter("draft_model", target, {"model": str(tmp_path), **more})
        assert drafter.model.model.base_model.layers[0].mlp.down_proj.packed.kind == kind


@needs_integers
def test_a_package_holds_them(files, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.models.compiled.package.home", lambda: tmp_path)
    cold = build_target(str(files.path), package=False)
    compile_target(str(files.path))
    warm = build_target(str(files.path))
    assert isinstance(warm.model.model, Skeleton)
    assert warm.label == cold.label
    mine, theirs = (weights(target.model.model) for target in (warm, cold))
    head = "lm_head.weight"
    assert torch.equal(mine[head], theirs[head])
    kinds = [{m.packed.kind for m in t.model.model.modules() if isinstance(m, PackedLinear)} for t in (warm, cold)]
    assert kinds[0] == kinds[1] >= {"int4", "int8", "int4_k", "int5_k", "int6_k"}


def test_what_does_not_round_to_the_folder_is_not_kept(file, files, tmp_path):
    for path in files.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / FILE).unlink()
    stored = load_file(tmp_path / "model.safetensors")
    other, norm = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
    stored[other][-1, -1] += 1.0
    stored[norm][0] += 1.0
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    assert not keep(file, tmp_path)
    own = opened(tmp_path)
    assert own is not None
    assert stored.keys() - own.kinds.keys() == {other, norm}
    if cpu_linear.has_integers():
        partly = ModelFiles("tiny", tmp_path, "gguf", None, "Q4_K_M", rounded="bfloat16")
        model = restored.load_restored(partly)
        assert torch.equal(weights(model)["model.norm.weight"], stored[norm].float())
        assert "rounded to bfloat16" in partly.weights(exact=True)


@needs_integers
def test_a_folder_that_was_written_over_has_its_own_weights(file, files, tmp_path, monkeypatch, capfd):
    for path in files.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    stored = load_file(tmp_path / "model.safetensors")
    other = "model.layers.0.mlp.up_proj.weight"
    stored[other] *= 2
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    model = restored.load_restored(ModelFiles("tiny", tmp_path, "gguf"))
    assert model is not None
    assert torch.equal(model.get_parameter(other), stored[other].float())
    assert isinstance(model.model.layers[0].mlp.gate_proj, PackedLinear)
    assert f"{other} among them" in capfd.readouterr().err


def test_folders_of_before_go_on_as_they_did(files, tmp_path, monkeypatch, capfd):
    for path in files.path.iterdir():
        if path.name != FILE:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    old = ModelFiles("tiny", tmp_path, "gguf", None, "Q4_K_M")
    assert restored.load_restored(old) is None
    assert old.weights(exact=False) == "Q4_K_M weights, "
    assert not cpu_linear.has_integers() or "none kept" in capfd.readouterr().err


def test_blocks_that_are_not_known_are_left_alone(files):
    weight = torch.zeros(4, 256, dtype=torch.bfloat16)
    assert "Q3_K" not in blocks.TYPES
    assert kept._ordered(weight.float().numpy(), "Q3_K", weight, [2]) is None
