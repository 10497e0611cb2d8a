"""Cost-scaled targets: another shape, the same function."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import tiny
from slipstream.models.sources import catalog, store
from slipstream.models.sources.gguf import weights as kept
from slipstream.models.sources.scaled import CostScale, interleaved, parse_scaled, room, widened, write_scaled
from slipstream.models.sources.store import CatalogError

KINDS = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 12}, "mistral": {"sliding_window": None}}
TEXT = torch.tensor([[5, 9, 33, 4, 4, 60, 21, 7, 90, 3, 12, 55]])


def saved(kind: str, folder, dtype=torch.float32, **more) -> None:
    model = tiny.build(kind, **KINDS.get(kind, {}), **more).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)  # ones would hide a norm that is not corrected
    model.save_pretrained(folder)


def logits(folder, dtype=torch.float64):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(TEXT).logits[0], sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scale", [CostScale(2), CostScale(1, 2), CostScale(4, 5)], ids=str)
def test_the_function_is_the_same(tmp_path, kind, tied, scale):
    source, target = tmp_path / "source", tmp_path / "made"
    saved(kind, source, tie_word_embeddings=tied)
    target.mkdir()
    about = write_scaled(source, target, scale)
    (expected, small), (scaled, large) = logits(source), logits(target)
    # transformers computes norms and softmax in float32 whatever the weights are, so equal means to seven digits
    assert float((scaled - expected).norm() / expected.norm()) < 3e-6
    assert large > small
    assert "same function" in about["scaled"]
    written = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    assert 0.9 * written < room(source, scale) < 1.3 * written
    assert len(about["sha256"]) == 64


def test_silent_blocks_change_not_a_bit(tmp_path):
    saved("llama", tmp_path / "source")
    (tmp_path / "made").mkdir()
    write_scaled(tmp_path / "source", tmp_path / "made", CostScale(1, 3))
    scaled, expected = logits(tmp_path / "made", torch.float32)[0], logits(tmp_path / "source", torch.float32)[0]
    assert torch.equal(scaled, expected)


def test_where_silent_blocks_stand():
    assert interleaved(3, 0) == [0, 1, 2]
    assert interleaved(2, 2) == [0, None, 1, None]
    assert interleaved(3, 1) == [0, 1, 2, None]
    assert [i for i in interleaved(30, 5) if i is not None] == list(range(30))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_digit_is_lost(dtype):
    weight = torch.randn(6, 4).to(dtype)
    wide = widened("model.layers.0.mlp.up_proj.weight", weight, 8)
    assert torch.equal(8 * wide[:6, :4], weight)
    tiny_weight = torch.tensor([[6e-8]], dtype=torch.float16)
    with pytest.raises(CatalogError, match="too small to be divided"):
        widened("model.layers.0.mlp.up_proj.weight", tiny_weight, 4)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("scaled:smollm2-135m", "names no scaled target"),
        ("scaled:smollm2-135m:3x", "power of two"),
        ("scaled:smollm2-135m:128x", "power of two, 1 to 64"),
        ("scaled:nonsense:2x", "no model called 'nonsense'"),
        ("scaled:smollm2-135m:2x+5000", "0 to 1000"),
    ],
)
def test_names_that_are_none(name, says):
    with pytest.raises(CatalogError, match=says):
        catalog.resolve(name, fetch=False)


def test_a_name_says_what_is_scaled():
    assert parse_scaled("scaled:org/model:8x+5") == ("org/model", CostScale(8, 5))
    assert str(CostScale(8, 5)) == "8x+5"


def test_other_architectures_are_refused(tmp_path):
    saved("gpt2", tmp_path / "gpt2")
    with pytest.raises(CatalogError, match="only llama, mistral"):
        write_scaled(tmp_path / "gpt2", tmp_path, CostScale(2))


def test_a_scaled_model_is_made_once_named_and_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    saved("llama", tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    (tmp_path / "source" / kept.FILE).write_bytes(b"blocks of another shape")
    name = f"scaled:{tmp_path / 'source'}:2x"
    files = catalog.resolve(name)
    assert files.kind == "scaled"
    assert files.name == name
    assert "2 times as wide" in files.scaled
    assert (files.path / "tokenizer.json").is_file()
    assert not (files.path / kept.FILE).exists()
    config = json.loads((files.path / "config.json").read_text())
    assert config["hidden_size"] == 64
    assert catalog.resolve(name) == files
    assert catalog.resolve(str(files.path)).scaled == files.scaled  # also by another name
    (own,) = catalog.installed()
    assert catalog.remove(own.name) > 0
    assert store.manifest(files.path) is None


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_twice_as_wide_says_the_same(tmp_path):
    source = catalog.resolve("smollm2-135m")
    write_scaled(source.path, tmp_path, CostScale(2, 1))
    tokenizer = catalog.load_tokenizer(source)
    text = "A slipstream is the air that a moving car pulls along behind it. A second car that drives close behind the "
    text += "first one needs less power to keep the same speed. 1, 2, 3, 4. def add(a, b):\n    return a + b\n"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    choices = []
    for folder in (catalog.full_folder(source.path), tmp_path):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            choices.append(model(ids).logits[0])
    assert torch.equal(choices[0].argmax(-1), choices[1].argmax(-1))
    torch.testing.assert_close(choices[1], choices[0], rtol=1e-3, atol=1e-3)
