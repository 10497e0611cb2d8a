"""Prompts begin with one BOS, and streamed text equals text decoded at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import letters
from alphabets import CHATML, byte_level, sentencepiece
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.text.codec import PIECE, TextCodec, fingerprint, same_tokenizer
from slipstream.models.text.detokenizer import ByteDetokenizer, Detokenizer

PHRASES = [
    "Hello, world! ",
    "Größe und Maß ",
    "こんにちは世界",
    "नमस्ते ",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "مرحبا ",
    "e\u0301\u0302 ",
    "\n\t  x",
    "\ufffd",
    "\U00010348\U0001f600",
]


def chained(*extra: str) -> PreTrainedTokenizerFast:
    """Of bytes, under a decoder that would also spell out tokens of another kind: some converters write such ones."""
    tokenizer = byte_level(extra)
    steps = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.ByteLevel()]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


TEXTS = {
    "byte_level": TextCodec(byte_level()),
    "chained": TextCodec(chained()),
    "chained with others": TextCodec(chained("<0x41>", "▁a")),
    "sentencepiece": TextCodec(sentencepiece()),
}
CHUNKS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def streamed(text: TextCodec, ids: list[int], chunks: list[int]) -> str:
    stream, out, at = text.stream(), "", 0
    while at < len(ids):
        for chunk in chunks:
            part = stream.push(ids[at : at + chunk])
            out, at = out + part, at + chunk
            assert text.decode(ids).startswith(out), "what is handed out is final"
    return out + stream.flush()


@pytest.mark.parametrize("kind", TEXTS)
@settings(deadline=None, max_examples=150)
@given(data=st.data(), chunks=CHUNKS)
def test_a_stream_of_any_ids_equals_decoding_at_once(kind: str, data: st.DataObject, chunks: list[int]) -> None:
    text = TEXTS[kind]
    ids = data.draw(st.lists(st.integers(0, len(text.tokenizer) + 3), max_size=120))  # padding ids too
    others = set(text.tokenizer.convert_tokens_to_ids(["<0x41>", "▁a"])) if kind == "chained with others" else set()
    if others.intersection(ids):  # such a token makes this decoder take the bytes of the whole text for letters
        ids = [i for i in ids if i in others or (text.token(i) or "").isascii()]
    assert streamed(text, ids, chunks) == text.decode(ids)


@pytest.mark.parametrize("kind", TEXTS)
def test_prompts_that_are_encoded_together_have_the_ids_they_have_alone(kind: str) -> None:
    text, prompts = TEXTS[kind], ["a b", "", "aé!", "b" * 30]
    assert text.encode_all(prompts, raw=True) == [text.encode(prompt, raw=True) for prompt in prompts]
    assert text.encode_all([]) == []


def test_nothing_is_decoded_twice_where_every_token_is_so_many_bytes() -> None:
    kinds = {name: type(text.stream()) for name, text in TEXTS.items()}
    assert kinds == {
        "byte_level": ByteDetokenizer,
        "chained": ByteDetokenizer,
        "chained with others": Detokenizer,
        "sentencepiece": Detokenizer,
    }


@settings(deadline=None, max_examples=100)
@given(data=st.data(), chunks=CHUNKS)
def test_a_stream_of_bytes_in_any_order_equals_decoding_at_once(data: st.DataObject, chunks: list[int]) -> None:
    """Runs of byte tokens, whole, broken and invalid, between other tokens."""
    text = TEXTS["sentencepiece"]
    raw = b"".join(data.draw(st.lists(st.sampled_from([p.encode() for p in PHRASES] + [b"\xe2\x82", b"\x80"]))))
    names = [f"<0x{byte:02X}>" if byte > 32 else "▁a" for byte in raw]
    ids = [text.tokenizer.convert_tokens_to_ids(name) for name in names]
    assert streamed(text, ids, chunks) == text.decode(ids)


@settings(deadline=None, max_examples=100)
@given(phrases=st.lists(st.sampled_from(PHRASES) | st.text(max_size=8), max_size=12), chunks=CHUNKS)
def test_text_of_many_scripts_comes_back(phrases: list[str], chunks: list[int]) -> None:
    text, said = TEXTS["byte_level"], "".join(phrases)
    said = "".join(char for char in said if not "\ud800" <= char <= "\udfff")
    assert streamed(text, text.encode(said, raw=True), chunks) == said


def test_a_character_appears_when_it_is_whole() -> None:
    text = TEXTS["byte_level"]
    stream = text.stream()
    assert [stream.push([i]) for i in text.encode("a€b", raw=True)] == ["a", "", "", "€", "b"]
    assert stream.flush() == ""


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    for text in TEXTS.values():
        lengths: list[int] = []
        stream = Detokenizer(text.decode, text._is_text, text.is_byte)
        decode = stream._decode
        stream._decode = lambda ids, decode=decode, lengths=lengths: lengths.append(len(ids)) or decode(ids)
        for i in range(3000):
            stream.push([(i * 7919) % len(text.tokenizer)])
        assert max(lengths) < 100  # the longest run of byte tokens and the window
        assert len(lengths) < 3 * 3000


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    text = TEXTS["sentencepiece"]
    euro = [text.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "€".encode()]
    ids = [euro[0], len(text.tokenizer) + 2, *euro[1:], len(text.tokenizer)]
    assert text.decode(ids) == "€"
    assert streamed(text, ids, [1]) == "€"


def test_special_and_end_tokens_are_no_text() -> None:
    text = TextCodec(byte_level(), ends=[[5], None, 6])
    assert {0, 2, 5, 6} <= text.ends
    assert text.decode([0, 1, 2, *text.encode("hell", raw=True), 5, 2]) == "hell"
    stream = text.stream()
    assert stream.push([*text.encode("hell", raw=True), 5, 2]) + stream.flush() == "hell"


def test_bos_comes_once() -> None:
    with_bos, without = byte_level(bos="<|im_start|>"), byte_level()
    assert TextCodec(without).encode("hell", raw=True) == without.encode("hell", add_special_tokens=False)
    assert TextCodec(with_bos).encode("hell", raw=True) == [1, *without.encode("hell")]
    assert TextCodec(with_bos).encode("<|im_start|>hell", raw=True)[:2] == [1, *without.encode("hell")][:2]
    with_bos.chat_template = CHATML
    chat = TextCodec(with_bos).encode("hell")
    assert chat[0] == 1
    assert chat[1] != 1
    with_bos.chat_template = "{{ messages[0].content }}"  # forgets it
    assert TextCodec(with_bos).encode("hell") == [1, *without.encode("hell")]


def test_chat_templates() -> None:
    tokenizer = byte_level()
    with pytest.raises(ValueError, match="no chat template"):
        TextCodec(tokenizer).encode([{"role": "user", "content": "x"}])
    assert TextCodec(tokenizer).encode("x") == TextCodec(tokenizer).encode("x", raw=True)
    tokenizer.chat_template = CHATML
    text = TextCodec(tokenizer)
    assert text.instruct
    assert text.encode("hi") == text.encode([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(text.encode("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ValueError, match="raw is on"):
        text.encode([{"role": "user", "content": "x"}], raw=True)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="roles must alternate"):
        text.encode("hi")


def test_same_tokenizer() -> None:
    plain, padded, other = byte_level(), byte_level(("[PAD264]", "[PAD265]")), byte_level(("hello", "[PAD265]"))
    assert same_tokenizer(plain, padded) is None
    assert fingerprint(plain) == fingerprint(padded) != fingerprint(other)
    assert "id 264 is nothing in one and 'hello' in the other" in str(same_tokenizer(plain, other))
    assert "id 0 is '<|endoftext|>' in one and '<unk>'" in str(same_tokenizer(plain, sentencepiece()))


@pytest.mark.model
def test_the_default_tokenizer() -> None:
    text = load_text(resolve("smollm2-135m", fetch=False))
    said = "".join(PHRASES) * 3
    for chunks in ([1], [3, 1, 5]):
        assert streamed(text, text.encode(said, raw=True), chunks) == said
    assert text.instruct
    assert {0, 2} == text.ends
    assert text.encode("hi")[:2] == [1, *text.encode("system", raw=True)]
    assert [text.token(i) for i in text.encode("12 345", raw=True)] == ["1", "2", "Ġ", "3", "4", "5"]


def test_a_text_that_is_far_too_long_is_refused_by_its_beginning(monkeypatch):
    codec, lengths = TextCodec(letters.tokenizer()), []
    encode = codec.tokenizer.encode
    monkeypatch.setattr(codec.tokenizer, "encode", lambda text, **how: lengths.append(len(text)) or encode(text, **how))
    with pytest.raises(ValueError, match="the prompt has more than 100 tokens; the model's context holds 100"):
        codec.encode("abc" * 10_000, raw=True, context=100)
    assert max(lengths) <= 1600
    assert len(codec.encode("abc" * 500, raw=True, context=100)) == 1500, "what might fit is counted in full"
    lengths.clear()
    with pytest.raises(ValueError, match="the prompt has more than 50000 tokens"):
        codec.encode("abc" * 1_000_000, raw=True, context=50_000)
    assert (max(lengths), len(lengths)) == (PIECE, 4), "the memory for a piece, and no more pieces than it takes"


def test_a_template_is_compiled_in_advance_and_one_that_refuses_is_no_error():
    compiled = chat_template_utils._compile_jinja_template
    tokenizer = byte_level()
    for template in (CHATML, "{{ raise_exception('there must be a system message') }}"):
        tokenizer.chat_template = template
        compiled.cache_clear()
        TextCodec(tokenizer).prepare()
        assert compiled.cache_info().currsize == 1
