"""Output under a grammar always matches it, speculation or not, and is what plain decoding under it gives."""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable, Iterator

import pytest

import default
import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Engine, GenerationOptions, Speculation
from slipstream.engines.completion import DEAD_END
from slipstream.engines.native import grammar
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.text.codec import TextCodec

pytest.importorskip("xgrammar")

RULES = ("token", "block", "coupled")
PATTERN = "(ab|ba|hh){2,6}c?"
EBNF = 'root ::= "a" inner "a"\ninner ::= [b-h] | "b" inner "b"'
FLAGS = {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob", "Eve"]}, "tags": FLAGS},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def nested(text: str) -> bool:
    """What EBNF says: a palindrome of a, some b, and one letter in the middle."""
    return re.fullmatch(r"a(b*)[b-h](b*)a", text) is not None and text == text[::-1]


def follows_schema(text: str) -> bool:
    data = json.loads(text)
    tags = data["tags"]
    return (
        data.keys() == {"name", "tags"} and data["name"] in ("Ann", "Bob", "Eve") and tags == [t is True for t in tags]
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with NativeEngine(letters.target(), depth=4) as made:
        yield made


def options(spec: dict | None, rule: str, n: int = 1, off: bool = False, most: int = 24) -> GenerationOptions:
    return GenerationOptions(most, n=n, speculation=Speculation(off=off, verify=rule), **(spec or {}))


def matches(spec: dict, text: str) -> bool:
    return re.fullmatch(spec["regex"], text) is not None if "regex" in spec else nested(text)


@pytest.mark.parametrize("spec", [{"regex": PATTERN}, {"grammar": EBNF}])
def test_output_matches_whatever_the_rule(engine, spec):
    tickets = [
        engine.submit("ababcbaabcbbab", Sampling(temperature=t, seed=seed), options(spec, rule))[0]
        for rule in RULES
        for t in (0.0, 1.0, 2.0)
        for seed in range(2)
    ]
    done = [ticket.result() for ticket in tickets]
    assert all(c.finish_reason in ("stop", "length") for c in done)
    over = [c for c in done if c.finish_reason == "stop"]
    assert len(over) > len(done) / 2
    assert all(matches(spec, c.text) for c in over), [c.text for c in over]
    assert any(sum(c.stats.accepted) for c in done)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", [{"regex": PATTERN}, {"grammar": EBNF}])
def test_speculation_changes_nothing(engine, temperature, spec):
    fast, slow = (
        engine.submit("ababab", Sampling(temperature=temperature, seed=3), options(spec, "coupled", n=3, off=off))
        for off in (False, True)
    )
    assert [ticket.result().token_ids for ticket in fast] == [ticket.result().token_ids for ticket in slow]


@pytest.mark.parametrize("rule", RULES)
def test_a_grammar_no_token_can_follow_ends_its_own_request(engine, rule):
    """The tokenizer has no z: after the letters before it there is no way on."""
    how, free = Sampling(seed=1), options(None, "coupled")
    (good,) = engine.submit("abc", how, free)
    (dead,) = engine.submit("abc", how, options({"regex": "abz"}, rule))
    (never,) = engine.submit("abc", how, options({"regex": "z"}, rule))
    assert (dead.result().finish_reason, dead.result().error, dead.result().text) == ("error", DEAD_END, "ab")
    assert (never.result().finish_reason, never.result().text) == ("error", "")
    (alone,) = engine.submit("abc", how, free)
    assert good.result().token_ids == alone.result().token_ids


def test_suppressed_tokens_that_a_grammar_needs(engine):
    b = letters.TOKENS.index("b")
    (dead,) = engine.generate("abc", Sampling(seed=1, suppress_tokens=frozenset({b})), regex="a+b", max_tokens=60)
    assert dead.finish_reason in ("length", "error")
    (dead,) = engine.generate("abc", Sampling(seed=1, suppress_tokens=frozenset({b})), regex="ab")
    assert (dead.finish_reason, dead.error, dead.text) == ("error", DEAD_END, "a")


def test_the_end_comes_where_the_grammar_is_complete_and_only_there():
    text = TextCodec(letters.tokenizer())
    row = grammar.compiled(("regex", "ab?"), text, len(letters.TOKENS))()
    a, b, end = (letters.TOKENS.index(token) for token in ("a", "b", "<end>"))

    def may(*path: int) -> list[int] | None:
        mask = row.allowed(path)
        return None if mask is None else mask.nonzero()[:, 0].tolist()

    assert may() == [a]
    assert may(a) == [end, b]
    assert may(a, b) == [end]
    assert may(b) is None
    assert may(a, end) is None, "the text is over"
    assert may(a, end, b) is None
    assert may(a) == [end, b], "back again"
    row.advance([a])
    assert may() == [end, b]
    assert may(a) is None
    assert may(b) == [end]


def test_special_tokens_are_no_text():
    text = TextCodec(letters.tokenizer())
    row = grammar.compiled(("regex", "(.|\\n)*"), text, len(letters.TOKENS))()
    mask = row.allowed(())
    assert mask is not None
    assert not mask[letters.TOKENS.index("<user>")]
    assert mask[letters.TOKENS.index("<end>")]
    assert row.allowed([letters.TOKENS.index("<bot>")]) is None


def test_a_chain_costs_one_mask_a_place(monkeypatch):
    row = grammar.compiled(("regex", "[a-p]*"), TextCodec(letters.tokenizer()), len(letters.TOKENS))()
    filled = []
    make = row._mask
    monkeypatch.setattr(row, "_mask", lambda: filled.append(1) or make())
    path = [3, 4, 5, 6, 7]
    for _ in range(3):  # drafter, verifier, and once more
        for size in range(6):
            row.allowed(path[:size])
    assert len(filled) == 6
    row.advance(path[:2])
    row.allowed(())
    assert len(filled) == 7


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"regex": "[a"}, "the regex is malformed: .*Unclosed"),
        ({"grammar": "start ::= [a]"}, "the grammar is malformed: .*root"),
        ({"grammar": "json"}, "a grammar is EBNF, such as .*; for any JSON pass json_schema=True"),
        ({"json_schema": {"type": "thing"}}, "the json_schema is malformed: .*thing"),
        ({"json_schema": {"enum": {1}}}, "json_schema cannot be written as JSON"),
    ],
)
def test_what_is_no_grammar_is_refused_in_a_sentence(engine, spec, said):
    with pytest.raises(ValueError, match=said) as caught:
        engine.submit("abc", options=GenerationOptions(**spec))
    assert "\n" not in str(caught.value)


def test_without_xgrammar_the_sentence_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def without(name, *more):
        if name == "xgrammar":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install slipstream-lm\[grammar\]"):
        grammar.compiled(("regex", "a"), TextCodec(letters.tokenizer()), len(letters.TOKENS))


NUMBER, POLITE = r"[0-9]{3}-[0-9]{2}", r"(yes|no), (sir|madam)!"
SPECS: list[tuple[dict, Callable[[str], object]]] = [
    ({"json_schema": SCHEMA}, follows_schema),
    ({"regex": NUMBER}, re.compile(NUMBER).fullmatch),
    ({"grammar": 'root ::= ("yes" | "no") ", " ("sir" | "madam") "!"'}, re.compile(POLITE).fullmatch),
]


@pytest.mark.model
def test_the_default_model_writes_what_the_grammar_says():
    prompt = 'Repeat it in one line: {"name": "Ann", "tags": [true, false]} 555-12 yes, sir!'
    ways = [(0.0, "block", False), (0.0, "block", True), *((1.0, rule, False) for rule in RULES)]
    with NativeEngine(default.target(), depth=3) as engine:
        asked = [
            [
                engine.submit(prompt, Sampling(temperature=t, seed=2), options(spec, rule, off=off, most=60))[0]
                for t, rule, off in ways
            ]
            for spec, _ in SPECS
        ]
        for (_, right), tickets in zip(SPECS, asked, strict=True):
            done = [ticket.result() for ticket in tickets]
            assert all(c.finish_reason == "stop" and right(c.text) for c in done), [
                (c.text, c.finish_reason) for c in done
            ]
            assert done[0].token_ids == done[1].token_ids
