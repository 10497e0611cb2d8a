"""A tokenizer without transformers gives the ids and texts of transformers' own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphabets import CHATML, byte_level, sentencepiece
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.text.codec import TextCodec
from slipstream.models.text.light_tokenizer import LightTokenizer, tokenizer_parts

STATEFUL = "{% set ns = namespace(x=1) %}{% for m in messages %}{{ ns.x }}{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users') }}{% endif %}"
    "{{ m.content | tojson }}{% endfor %}"
)


def templated(tokenizer, template: str):
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = {
    "byte_level": templated(byte_level(), CHATML),
    "with_bos": templated(byte_level(bos="<|im_start|>"), STRICT),
    "sentencepiece": sentencepiece(),
}


def words_of(tokenizer) -> LightTokenizer:
    parts = tokenizer_parts(tokenizer)
    assert parts is not None
    return LightTokenizer(*parts, pytest.fail)


PAIRS = {name: (TextCodec(words_of(tokenizer)), TextCodec(tokenizer)) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("kind", PAIRS)
@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=60), data=st.data())
def test_any_text_and_any_ids_are_the_same(kind, text, data):
    light, full = PAIRS[kind]
    assert light.encode(text, raw=True) == full.encode(text, raw=True)
    assert light.tokenizer.encode(text) == full.tokenizer.encode(text)
    ids = data.draw(st.lists(st.integers(0, len(full.tokenizer) + 3), max_size=30))
    assert light.decode(ids) == full.decode(ids)
    assert [light.tokenizer.convert_ids_to_tokens(i) for i in ids] == [
        full.tokenizer.convert_ids_to_tokens(i) for i in ids
    ]
    if full.instruct:
        assert light.encode(text) == full.encode(text)


@pytest.mark.parametrize("kind", PAIRS)
def test_ends_and_specials_are_the_same(kind):
    light, full = PAIRS[kind]
    assert (light.ends, light.skipped, light.instruct, light._bos) == (
        full.ends,
        full.skipped,
        full.instruct,
        full._bos,
    )


def test_refusals_of_a_template_are_the_same():
    light, full = PAIRS["with_bos"]
    said = []
    for text in (light, full):
        with pytest.raises(ValueError, match="the chat template refuses these messages: only users") as error:
            text.encode([{"role": "system", "content": "a"}])
        said.append(str(error.value))
    assert said[0] == said[1]


def test_what_is_not_plainly_the_same_is_left_to_transformers():
    tokenizer = templated(byte_level(), CHATML)
    source, facts = tokenizer_parts(tokenizer)
    asked = []
    words = LightTokenizer(source, facts, lambda: asked.append(1) or tokenizer)
    parts = [{"role": "user", "content": "hell", "name": "x"}]
    assert words.apply_chat_template(parts) == tokenizer.apply_chat_template(
        parts, add_generation_prompt=True, tokenize=False
    )
    assert asked
    stateful = LightTokenizer(*tokenizer_parts(templated(byte_level(), STATEFUL)), lambda: asked.append(2) or tokenizer)
    stateful.apply_chat_template([{"role": "user", "content": "hell"}])
    assert asked[-1] == 2


def test_a_tokenizer_that_does_more_is_not_taken(monkeypatch):
    tokenizer = byte_level()
    own = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **how: own(text.lower(), **how))
    assert tokenizer_parts(tokenizer) is None
    assert tokenizer_parts(object()) is None


@pytest.mark.model
def test_the_default_model_reads_a_thousand_texts_the_same():
    full = load_text(resolve("smollm2-135m"))
    light = TextCodec(words_of(full.tokenizer), [sorted(full.ends)])
    rng = random.Random(0)
    lines = [
        line for path in sorted(Path(__file__).parents[3].glob("docs/*.md")) for line in path.read_text().split("\n\n")
    ]
    planes = [
        (32, 127),
        (0xA0, 0x24F),
        (0x370, 0x5FF),
        (0x900, 0x97F),
        (0x3040, 0x30FF),
        (0x4E00, 0x4FFF),
        (0x1F300, 0x1F6FF),
    ]
    lines += ["".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randrange(1, 40))) for _ in range(1000)]
    assert len(lines) > 1000
    for line in lines:
        assert light.encode(line, raw=True) == (ids := full.encode(line, raw=True))
        assert light.decode(ids) == full.decode(ids)
        assert light.encode(line) == full.encode(line)
    for chat in (
        [{"role": "system", "content": " be brief "}, {"role": "user", "content": "a"}],
        [{"role": "user", "content": "b\n"}] * 3,
    ):
        assert light.encode(chat) == full.encode(chat)
    assert (light.ends, light.skipped, light._bos) == (full.ends, full.skipped, full._bos)
    stream = light.stream(), full.stream()
    for i in [rng.randrange(49152) for _ in range(500)]:
        assert stream[0].push([i]) == stream[1].push([i])
