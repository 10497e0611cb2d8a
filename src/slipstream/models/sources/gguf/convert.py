"""Convert a GGUF file to a folder of safetensors and tokenizer, which common tools load quickly.

Reading a GGUF file takes a while, because its blocks are dequantised and its tokenizer is rebuilt; so it is done once.
The folder holds the quantised values in a wider type, and its manifest says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream.models.sources.gguf.header import reading_once
from slipstream.models.sources.gguf.packed import pack
from slipstream.models.sources.gguf.size import cut_short
from slipstream.models.sources.gguf.weights import keep
from slipstream.models.sources.progress import no_gguf_bar, quiet
from slipstream.models.sources.store import CatalogError, sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAGIC = b"GGUF"
FEW_BITS = frozenset({"Q4_1", "Q8_0", "F32"})  # types whose integers can be recovered (`kernels.cpu.few_bits`)
# pre-tokenizers that split numbers into single digits; transformers (5.22) reads the others from the file
DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})


def convert_gguf(gguf: Path, folder: Path) -> dict[str, Any]:
    """Write a GGUF file into a folder as safetensors with tokenizer. Returns facts for the folder's manifest.

    Types whose integers can be recovered from the dequantised numbers are float32 weights, which hold them exactly. The
    folder then keeps the file's blocks in place of the weights (`gguf.packed`). Other types are written in bfloat16,
    with the file's blocks beside them (`gguf.weights`).
    """
    check_gguf(gguf)
    with quiet(), no_gguf_bar(), reading_once():
        with _reading(gguf, "GGUF file"):
            fields = _fields(gguf)
        about = {"quantised": _quantisation(fields), "gguf_sha256": sha256(gguf), "gguf_bytes": gguf.stat().st_size}
        rounded = not set(fields["tensor_types"]) <= FEW_BITS
        _write_model(_read_model(gguf, torch.bfloat16 if rounded else torch.float32), folder)
        _read_tokenizer(gguf, fields).save_pretrained(folder)
        if rounded and about["quantised"]:
            about |= {"rounded": "bfloat16", "kept": keep(gguf, folder)}
        elif about["quantised"]:
            about |= pack(gguf, folder)
    _shorten(folder / "tokenizer.json")
    return about


def _shorten(tokenizer: Path) -> None:
    """Write a tokenizer without line breaks and indentation, which are more than half of its bytes."""
    if tokenizer.is_file():
        data = json.loads(tokenizer.read_text(encoding="utf-8"))
        tokenizer.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _write_model(model: PreTrainedModel, folder: Path) -> None:
    model.config._name_or_path = ""
    model.save_pretrained(folder)


def is_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == MAGIC
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror}") from error


def check_gguf(gguf: Path) -> None:
    """Refuse a file that is not GGUF, is cut short, or cannot be read here, before anything slow begins."""
    if not is_gguf(gguf):
        raise CatalogError(f"{gguf} is not a GGUF file: it does not begin with the letters GGUF")
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise CatalogError(f"reading a GGUF file needs the Python package {missing[0]}: pip install {missing[0]}")
    if problem := cut_short(gguf):
        raise CatalogError(f"{gguf} {problem}; copy or download it again")


@contextmanager
def _reading(gguf: Path, role: str) -> Iterator[None]:
    try:
        yield
    except OSError:  # errors of the disk: `store` turns them into a sentence
        raise
    except Exception as error:  # readers fail in many ways on architectures and vocabularies they do not know
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise CatalogError(f"{gguf.name} cannot be read as a {role} ({reason})") from error


def _read_model(gguf: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"gguf_file": gguf.name, "dtype": dtype, "local_files_only": True}
    try:  # from 5.19 on transformers keeps the blocks packed by default; earlier versions have no such option
        from transformers import GgufConfig
    except ImportError:
        pass
    else:
        options["quantization_config"] = GgufConfig(dequantize=True)
    with _reading(gguf, "causal language model"):
        model, info = AutoModelForCausalLM.from_pretrained(str(gguf.parent), output_loading_info=True, **options)
    if missing := sorted(info["missing_keys"]):
        raise CatalogError(f"{gguf.name} lacks {len(missing)} weights of its architecture, {missing[0]} among them")
    return model


def _read_tokenizer(gguf: Path, fields: dict[str, Any]) -> PreTrainedTokenizerBase:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    with _reading(gguf, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    if fields.get("tokenizer.ggml.pre") in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    _keep_specials(tokenizer, fields)
    return tokenizer


def _keep_specials(tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any]) -> None:
    """Give a rebuilt tokenizer the special tokens of its file. Readers mix them up or drop BOS."""
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        tokenizer.init_kwargs.pop(f"{role}_token_id", None)
        i = fields.get(f"tokenizer.ggml.{key}_token_id")
        if i is not None and getattr(tokenizer, f"{role}_token_id") != i:  # before 5.19 transformers sets EOS to BOS
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(int(i)))
    # files with SentencePiece vocabularies often lack the entry
    add_bos = bool(fields.get("tokenizer.ggml.add_bos_token", fields.get("tokenizer.ggml.model") == "llama"))
    bos = tokenizer.bos_token_id
    if bos is not None and add_bos != (tokenizer.encode("a")[:1] == [bos]):
        tokenizer.add_bos_token = add_bos


def _fields(gguf: Path) -> dict[str, Any]:
    """The short entries of the file's header; the vocabulary is left to transformers."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    short = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    return short | {"tensor_types": sorted({tensor.tensor_type.name for tensor in reader.tensors})}


def _quantisation(fields: dict[str, Any]) -> str | None:
    """The file's name for its quantisation, such as Q4_1; None for plain floating point."""
    from gguf import LlamaFileType

    if set(fields["tensor_types"]) <= {"F32", "F16", "BF16", "F64"}:
        return None
    try:
        return str(LlamaFileType(fields["general.file_type"]).name).removeprefix("MOSTLY_")
    except (KeyError, ValueError):
        return "+".join(kind for kind in fields["tensor_types"] if not kind.startswith(("F", "BF")))
