"""A Whisper model as OpenAI stores it, one .pt file, becomes a folder of safetensors with a tokenizer."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import whispers
from slipstream.models.sources import store
from slipstream.models.sources.catalog import load_model, load_text
from slipstream.models.sources.resolve import resolve
from slipstream.models.sources.store import CatalogError
from slipstream.models.sources.whisper.openai_convert import NAMES, SIZES, renamed
from slipstream.models.sources.whisper.openai_tokenizer import SPECIAL, TIMES
from slipstream.models.speech.codec import SpeechCodec

WORDS = [*(bytes([byte]) for byte in range(256)), b"ab", b"abc"]
VOCAB = len(WORDS) + 2 + 3 + len(SPECIAL) + TIMES  # with three languages
OWN_NAMES = (
    (r"\.layers\.", ".blocks."),
    (r"self_attn_layer_norm", "attn_ln"),
    (r"encoder_attn_layer_norm", "cross_attn_ln"),
    (r"self_attn", "attn"),
    (r"encoder_attn", "cross_attn"),
    (r"q_proj", "query"),
    (r"k_proj", "key"),
    (r"v_proj", "value"),
    (r"out_proj", "out"),
    (r"final_layer_norm", "mlp_ln"),
    (r"fc1", "mlp.0"),
    (r"fc2", "mlp.2"),
    (r"encoder\.layer_norm", "encoder.ln_post"),
    (r"decoder\.layer_norm", "decoder.ln"),
    (r"embed_tokens", "token_embedding"),
    (r"embed_positions\.weight", "positional_embedding"),
)


def own_name(name: str) -> str:
    name = name.removeprefix("model.")
    for theirs, own in OWN_NAMES:
        name = re.sub(theirs, own, name)
    return name


@pytest.fixture
def checkpoint(tmp_path, monkeypatch) -> tuple[Path, dict[str, torch.Tensor]]:
    """A .pt file, and its weights by the names that transformers gives them."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("slipstream.models.sources.whisper.openai_tokenizer.find_spec", lambda name: None)
    sizes = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 1500, "max_target_positions": 64}
    model = whispers.build(vocab_size=VOCAB, **sizes)
    weights = {name: weight.half() for name, weight in model.state_dict().items() if name != "proj_out.weight"}
    config = model.config.to_dict()
    dims = {own: config[name] for name, own in SIZES.items()} | {"n_text_state": config["d_model"]}
    file = tmp_path / "openai" / "tiny.en.pt"
    file.parent.mkdir()
    torch.save({"dims": dims, "model_state_dict": {own_name(name): w for name, w in weights.items()}}, file)
    return file, weights


def write_vocabulary(folder: Path) -> None:
    lines = (f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(WORDS))
    (folder / "gpt2.tiktoken").write_text("\n".join(lines))


@pytest.mark.parametrize("as_folder", [False, True])
def test_weights_and_tokenizer_are_converted(checkpoint, as_folder):
    file, weights = checkpoint
    write_vocabulary(file.parent)
    files = resolve(str(file.parent if as_folder else file))
    stored = load_file(files.path / "model.safetensors")
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[name], weight) for name, weight in weights.items())
    assert store.manifest(files.path)["source_sha256"] == store.sha256(file)
    codec = SpeechCodec(files.path, load_text(files))
    assert codec.text.encode("abc ab", raw=True) == [257, 32, 256]
    assert codec.languages == {}
    assert codec.prompt(None, "transcribe", True) == [codec.start] == [len(WORDS) + 1]
    assert {ord('"'), ord("[")} < set(codec.rules([codec.start], True).suppressed)
    model = load_model(files, torch.float32, "cpu")
    assert model.config.decoder_start_token_id == codec.start
    assert torch.equal(model.proj_out.weight, weights["model.decoder.embed_tokens.weight"].float())


def test_what_is_missing_is_said(checkpoint):
    file, _ = checkpoint
    with pytest.raises(CatalogError, match=r"has no tokenizer; put gpt2\.tiktoken of the package openai-whisper, or a"):
        resolve(str(file))
    (file.parent / "gpt2.tiktoken").write_text("QQ== 0\n")
    with pytest.raises(CatalogError, match=r"gpt2\.tiktoken does not fit the model"):
        resolve(str(file))
    (file.parent / "gpt2.tiktoken").write_text("no vocabulary at all\n")
    with pytest.raises(CatalogError, match="is not a vocabulary of tiktoken"):
        resolve(str(file))


def test_a_tokenizer_beside_the_file_is_used(checkpoint):
    file, _ = checkpoint
    whispers.tokenizer().save_pretrained(file.parent)
    assert (resolve(str(file)).path / "tokenizer.json").read_bytes() == (file.parent / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_other_files_are_refused(tmp_path, content):
    file = tmp_path / "model.pt"
    if content is None:
        torch.save({"weights": torch.zeros(2)}, file)
    else:
        file.write_bytes(content)
    with pytest.raises(CatalogError, match="is not a Whisper model as OpenAI stores it"):
        resolve(str(file))


def test_names_are_told_apart():
    assert renamed("decoder.blocks.3.cross_attn_ln.bias") == "model.decoder.layers.3.encoder_attn_layer_norm.bias"
    assert renamed("encoder.ln_post.weight") == "model.encoder.layer_norm.weight"
    assert len(NAMES) == len(OWN_NAMES) - 1  # both final norms are one pattern
