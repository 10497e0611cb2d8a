"""The tokenizer of a Whisper model as OpenAI stores it, from the files at hand.

OpenAI's models come without a tokenizer. A `tokenizer.json` beside the model is used as it is. Otherwise the tokenizer
is made from OpenAI's vocabulary, `gpt2.tiktoken` for English-only models and `multilingual.tiktoken` for others: beside
the model, or in the installed package openai-whisper.
"""

from __future__ import annotations

import base64
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.models.sources.store import CatalogError

ENGLISH_ONLY = 51864  # tokens of an English-only model
TIMES = 1501  # timestamps, in steps of 0.02 s
BESIDE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
SPECIAL = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
LANGUAGE_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg "
    "lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so "
    "af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
SYMBOLS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'  # a transcript does not hold these, nor the next; OpenAI's lists
GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
MUSIC = "♩♪♫♬♭♮♯"


def write_tokenizer(model: Path, vocab: int, target: Path) -> int:
    """Write tokenizer and generation settings of a .pt file to `target`. Returns the end token."""
    if (model.parent / "tokenizer.json").is_file():
        for name in BESIDE:
            if (model.parent / name).is_file():
                shutil.copyfile(model.parent / name, target / name)
        added = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        return int(next(token["id"] for token in added if token["content"] == "<|endoftext|>"))
    tokenizer = _tokenizer(_vocabulary_file(model, vocab), vocab)
    tokenizer.save_pretrained(target)
    end = int(tokenizer.eos_token_id)
    settings = {
        "is_multilingual": vocab > ENGLISH_ONLY,
        "suppress_tokens": _not_speech(tokenizer),
        "begin_suppress_tokens": [*tokenizer.encode(" ", add_special_tokens=False), end],
    }
    (target / "generation_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
    return end


def _vocabulary_file(model: Path, vocab: int) -> Path:
    name = "gpt2.tiktoken" if vocab <= ENGLISH_ONLY else "multilingual.tiktoken"
    package = find_spec("whisper")
    folders = [
        model.parent,
        *(Path(place) / "assets" for place in (package and package.submodule_search_locations) or ()),
    ]
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None:
        raise CatalogError(
            f"{model} has no tokenizer; put {name} of the package openai-whisper, or a tokenizer.json, beside it"
        )
    return file


def _tokenizer(file: Path, vocab: int) -> Any:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    ranks = _ranks(file)
    letters = _letters()

    def text(word: bytes) -> str:
        return "".join(letters[byte] for byte in word)

    merges = [_merge(word, rank, ranks) for word, rank in ranks.items() if len(word) > 1]
    core = Tokenizer(
        BPE({text(word): rank for word, rank in ranks.items()}, [(text(left), text(right)) for left, right in merges])
    )
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    languages = LANGUAGE_CODES.split()[: vocab - len(ranks) - len(SPECIAL) - TIMES - 2]
    names = ["endoftext", "startoftranscript", *languages, *SPECIAL]
    core.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in names])
    core.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>", special=False) for step in range(TIMES)])
    if core.get_vocab_size() != vocab:
        raise CatalogError(f"{file} does not fit the model: {core.get_vocab_size()} tokens, and the model has {vocab}")
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end, bos_token=end, pad_token=end, unk_token=end)


def _ranks(file: Path) -> dict[bytes, int]:
    """The tokens of a tiktoken file with their ranks, which are their ids."""
    try:
        lines = (line.split() for line in file.read_bytes().splitlines() if line)
        return {base64.b64decode(word): int(rank) for word, rank in lines}
    except ValueError as error:
        raise CatalogError(f"{file} is not a vocabulary of tiktoken ({error})") from error


def _merge(word: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that the last merge of a token joins: byte pair encoding by the merges before it."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _letters() -> dict[int, str]:
    """The character that byte-level BPE writes for each byte: itself if it is printable, else one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _not_speech(tokenizer: Any) -> list[int]:
    """The tokens of symbols that OpenAI's decoder suppresses."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    suppressed = {ids(" -")[0], ids(" '")[0]}
    for symbol in (*SYMBOLS, *GROUPS.split(), *MUSIC):
        for tokens in (ids(symbol), ids(f" {symbol}")):
            if len(tokens) == 1 or symbol in MUSIC:
                suppressed.add(tokens[0])
    return sorted(suppressed)
