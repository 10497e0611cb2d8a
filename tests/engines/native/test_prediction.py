"""Requests with a predicted output are drafted from it, whatever the engine's drafter is, and write the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import letters
import slipstream as ss
from slipstream.engines.native.engine import NativeEngine

GREEDY = ss.Sampling(temperature=0, suppress_tokens={0, 1, 2})  # tokens that are not text
SHORT = {"max_tokens": 24, "ignore_eos": True}
PROMPTS = ["abcabc", "ponm", "hg"]


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    with NativeEngine(letters.target(), "none") as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(engine) -> list[ss.Completion]:
    return engine.generate(PROMPTS, GREEDY, **SHORT)


def test_the_exact_answer_is_accepted_whole(engine, plain):
    deep = ss.Speculation(depth=8)
    done = engine.generate("abcabc", GREEDY, **SHORT, prediction=plain[0].text, speculation=deep)[0]
    assert done.token_ids == plain[0].token_ids
    assert done.tau == 8  # three cycles: nine tokens, nine, six


@pytest.mark.parametrize(
    "sampling", [GREEDY, ss.Sampling(temperature=0.9, seed=4, suppress_tokens={0, 1, 2})], ids=["greedy", "coupled"]
)
def test_each_prompt_of_a_batch_has_its_own(engine, sampling):
    without = engine.generate(PROMPTS, sampling, **SHORT)
    given = [without[0].text, None, "".join(reversed(without[2].text))]
    fixed = ss.Speculation(depth=4)  # a policy may draft nothing on a busy machine
    done = engine.generate(PROMPTS, sampling, **SHORT, prediction=given, speculation=fixed)
    assert [sample.token_ids for sample in done] == [sample.token_ids for sample in without]
    assert done[0].stats.drafted
    assert not done[1].stats.drafted


def test_a_stream_and_a_submitted_request_have_one(engine, plain):
    options = ss.GenerationOptions(**SHORT, prediction=plain[1].text, speculation=ss.Speculation(depth=4))
    (handle,) = engine.submit("ponm", GREEDY, options)
    assert handle.result().tau > 4
    chunks = list(engine.stream("ponm", GREEDY, **SHORT, prediction=plain[1].text))
    assert [token for chunk in chunks for token in chunk.token_ids] == plain[1].token_ids


@pytest.mark.parametrize("off", [ss.Speculation(off=True), ss.Speculation(drafter="none"), ss.Speculation(depth=0)])
def test_plain_decoding_stays_plain(engine, plain, off):
    done = engine.generate("ponm", GREEDY, **SHORT, prediction=plain[1].text, speculation=off)[0]
    assert not done.stats.drafted


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (5, "prediction is 5; it must be a string, or a list with one per prompt"),
        (b"abc", "prediction is b'abc'; it must be a string, or a list with one per prompt"),
        (["a", 3, "b"], "prediction is 3; it must be a string, or a list with one per prompt"),
        (["a", "b"], "there are 3 prompts and 2 predictions; give one, or one for each"),
        ("ab" * 100, "the prediction has 200 tokens; the model's context holds 160"),
        ("ab" * 4000, "the prediction has more than 160 tokens; the model's context holds 160"),
        ("a\ud800", "the prediction is not valid Unicode text (it holds half of a surrogate pair)"),
    ],
)
def test_a_wrong_one_is_refused_in_one_sentence(engine, prediction, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole sentence is compared
        engine.generate(PROMPTS, GREEDY, **SHORT, prediction=prediction)
    assert said in str(refused.value)
