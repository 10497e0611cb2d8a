"""The text of the experiments: a small vocabulary, and token ids that are computed once and stored.

A line of the data is an object with a text under `prompt` and perhaps one under `response`. Both together are a
document. Documents are shuffled by a fixed seed, and the last ones are held out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from settings import Sizes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slipstream.core.array_types import Tensor
from slipstream.train.corpus import Corpus
from slipstream.train.prompts import read_lines

END = "<end>"
VOCABULARY_TEXTS = 8000  # documents that the vocabulary is made from


@dataclass(frozen=True, eq=False)
class TextData:
    """Pieces of equal length to train on, and held-out ones."""

    train: Corpus
    held: Corpus
    tokenizer: Path

    def prompts(self, count: int, length: int, held: bool) -> list[list[int]]:
        """The beginnings of pieces, spread over all of them."""
        pieces = (self.held if held else self.train).tokens
        size = int((self.held if held else self.train).lengths[0])
        rows = pieces.view(-1, size)
        chosen = torch.linspace(0, len(rows) - 1, min(count, len(rows))).long()
        return [row[:length] for row in rows[chosen].tolist()]


def prepare(path: Path, folder: Path, sizes: Sizes) -> None:
    """Make the vocabulary and the token ids, unless they are there."""
    if (folder / "tokens.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    texts = ["\n".join(str(line[key]) for key in ("prompt", "response") if key in line) for _, line in read_lines(path)]
    if len(texts) < 20:
        raise SystemExit(f"{path} holds {len(texts)} documents; the experiments need 20 or more")
    random.Random(0).shuffle(texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=sizes.vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:VOCABULARY_TEXTS], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder / "tokenizer")
    held = max(4, len(texts) // 50)
    parts = {"train": texts[:-held], "held": texts[-held:]}
    ids = {name: _ids(tokenizer, part, sizes.length) for name, part in parts.items()}
    save_file(ids, folder / "tokens.safetensors")


def _ids(tokenizer: Tokenizer, texts: list[str], length: int) -> Tensor:
    """All documents with an end token each, cut to a multiple of `length`."""
    flat = [token for encoded in tokenizer.encode_batch(texts) for token in (*encoded.ids, 0)]
    if len(flat) < length:
        raise SystemExit(f"the data has {len(flat)} tokens in one of its parts; it needs {length} or more")
    return torch.tensor(flat[: len(flat) // length * length], dtype=torch.int32)


def load(folder: Path, sizes: Sizes) -> TextData:
    """Read what `prepare` wrote."""
    ids = load_file(folder / "tokens.safetensors")
    return TextData(_pieces(ids["train"], sizes.length), _pieces(ids["held"], sizes.length), folder / "tokenizer")


def _pieces(ids: Tensor, length: int) -> Corpus:
    count = len(ids) // length
    # all tokens but the first are supervised
    return Corpus(
        ids,
        torch.arange(count + 1) * length,
        torch.ones(count, dtype=torch.long),
        torch.zeros(count),
        ("text",) * count,
    )
