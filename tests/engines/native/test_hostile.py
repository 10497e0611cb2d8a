"""Requests of random types and values against one engine. Each is answered or refused in one sentence, and a good
request gets its own answer beside every one of them and after it.

The suite tries a few fixed examples; `make fuzz` tries FUZZ_EXAMPLES random ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine
from within import within

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
SECONDS = 60  # in which the tiny model has answered anything
GOOD: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
GREEDY = Sampling(temperature=0)

small = st.integers(-2, 24)
words = st.text("abcé<>\n\0\ud800", max_size=6)
# fmt: off
odd = st.sampled_from([
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 1.0, 1.5, -0.0, 1e-46, 1e-320, 1e38, 1e308, math.nan, math.inf,
    "", "none", "1", b"ab", bytearray(b"a"), memoryview(b"a"), 1j, Fraction(1, 2), Decimal("0.5"), object(), object,
    len, range(3), {}, {"a": 1}, {3: 1.0}, {"role": "user"}, set(), {3, 4}, iter(()), np.int64(5), np.float32(0.5),
    np.bool_(True), np.array(3), np.array([3, 4]), np.array([[3, 4]]), np.array(["a"]), torch.tensor(3),
    torch.tensor([3, 4]), torch.tensor([[3, 4], [5, 6]]), torch.tensor([0.5]), torch.ones(2, 2).to_sparse(), [[]],
    [None], [True], [3, "a"], [{"role": "user", "content": "ab"}], [{"role": 3}], [{}], [b"a"],
])
# fmt: on
anything = st.one_of(odd, small, words, st.integers(), st.floats(), st.binary(max_size=3), st.lists(small, max_size=4))


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 7).flatmap(lambda pick: good if pick < 7 else anything)


class Fields(dict[str, Any]):
    """Of an object to be made of them."""


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    return st.fixed_dictionaries({}, optional={name: mostly(field) for name, field in fields.items()}).map(Fields)


ids = st.lists(st.integers(0, len(letters.TOKENS) - 1), max_size=6)
number = st.sampled_from([0, 0.0, 0.3, 1, 2.5, np.float32(0.7), torch.tensor(0.5), Decimal("0.9")])
integer = st.sampled_from([0, 1, 3, 7, np.int64(2), torch.tensor(4)])
samplings = some(
    temperature=number,
    top_k=integer,
    top_p=number,
    min_p=number,
    seed=integer,
    repetition_penalty=number,
    presence_penalty=number,
    frequency_penalty=number,
    logit_bias=st.dictionaries(small, number, max_size=2),
    allowed_token_ids=ids,
    suppress_tokens=ids,
)
speculations = some(
    off=st.booleans(),
    drafter=st.sampled_from(["none", "ngram", "table", "nonsense"]),
    depth=integer,
    verify=st.sampled_from(["token", "block", "coupled", "greedy", "no_replace", "nonsense"]),
    shape=st.sampled_from([4, "2x1", "-1,-1", "9x9", "99x99x99x99", "x", 10**9]),
)
options = some(
    max_tokens=st.sampled_from([0, 1, 5, 12, 10**6]),
    min_tokens=integer,
    stop=st.one_of(words, st.lists(words, max_size=2)),
    stop_token_ids=ids,
    ignore_eos=st.booleans(),
    logprobs=integer,
    prompt_logprobs=integer,
    grammar=st.sampled_from(['root ::= "a" | "b" root', "", {"regex": "a"}]),
    json_schema=st.sampled_from([True, {"type": "string"}, {"type": "thing"}, 5]),
    regex=st.sampled_from(["[a-c]+", "(", 5]),
    raw=st.booleans(),
    speculation=speculations,
    temperature=number,
) | st.fixed_dictionaries({"n": st.sampled_from([0, 1, 2, 3, 5000, 10**30, True, 1.0, "2", None])})
prompts = mostly(st.one_of(st.just("abcabcab"), words, ids, st.lists(words, max_size=2), st.lists(ids, max_size=2)))


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    with NativeEngine(letters.target(), "ngram", "coupled", depth=3) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(engine: NativeEngine) -> list[int]:
    return good(engine)


def good(engine: NativeEngine) -> list[int]:
    (completion,) = within(SECONDS, lambda: engine.generate("abc", GREEDY, **GOOD))
    assert completion.finish_reason == "length"
    return list(completion.token_ids)


def made(kind: Any, fields: Any) -> Any:
    return kind(**fields) if isinstance(fields, Fields) else fields


def ask(engine: NativeEngine, prompt: Any, sampling: Any, options: dict[str, Any], streamed: bool) -> None:
    """Make the objects a request is made of, and send it."""
    if "speculation" in options:
        options["speculation"] = made(Speculation, options["speculation"])
    sampling = made(Sampling, sampling)
    if streamed:
        next(engine.stream(prompt, sampling, **options), None)
    else:
        engine.generate(prompt, sampling, **options)


# types are checked while tests run, by a library that draws from `random` in the engine's thread
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@settings(
    max_examples=EXAMPLES or 40,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(prompts, mostly(samplings), options, st.booleans())
def test_a_good_request_is_answered_beside_and_after_any_other(engine, expected, prompt, sampling, options, streamed):
    refusal = "none"
    (beside,) = engine.submit("abc", GREEDY, GenerationOptions(**GOOD))
    try:
        within(SECONDS, lambda: ask(engine, prompt, sampling, options, streamed))
    except ValueError as error:
        refusal = str(error)
    assert refusal, "a refusal says why"
    assert "\n" not in refusal, "in one sentence"
    assert within(SECONDS, beside.result).token_ids == expected
    assert good(engine) == expected
    assert not engine.stats["failures"]
