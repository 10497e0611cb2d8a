"""Tiny tokenizers of the two great families."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(extra: tuple[str, ...] = (), bos: str | None = None) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2 and its heirs have it: one token per byte and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("ð", "Ł")]
    words = [*SPECIALS, *alphabet, *("".join(pair) for pair in merges), *extra]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if bos:
        pair = [(bos, words.index(bos))]
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=pair)
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos or SPECIALS[1], eos_token=SPECIALS[2])
    made.add_special_tokens({"additional_special_tokens": SPECIALS[:1]})
    return made


def sentencepiece() -> PreTrainedTokenizerFast:
    """SentencePiece-like, as Llama 2 and Gemma have it: spaces begin words, unknown characters fall back to bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["<unk>", "<s>", "</s>", *bytes_, "▁", "a", "b", "▁a", "▁b", "ab", "▁▁", ".", "é"]
    backend = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
