"""What every registered engine keeps, as far as it says it can. A new engine is tested by registering it.

Models are the sixteen letters, as files. Where an engine is not installed, or cannot run so small a model, the reason
is told. vLLM is looked for in this environment, or in the one whose interpreter SLIPSTREAM_VLLM_PYTHON names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import letters
import letters_folder
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines import engines, open_engine
from slipstream.engines.base import Engine, GenerationOptions, Speculation
from slipstream.engines.extras import missing
from slipstream.engines.peer import Peer

PROMPTS = ["abcabcabc", "ponmponm", "hh", "abcdefghijklmnop"]
COLD = Sampling(temperature=0)
WARM = Sampling(temperature=0.8, seed=5)
PYTHON = os.environ.get("SLIPSTREAM_VLLM_PYTHON", "")
OPTIONS = {"vllm": {"python": PYTHON} if PYTHON else {}, "llamacpp": {"ngram": "2", "threads": "1"}}
ROUNDING = {"llamacpp": 2e-2}  # it keeps keys and values in float16
EXACT = {"transformers": {"dtype": "float32"}}  # on processors with bfloat16 it would take that
BARE = {"vllm": OPTIONS["vllm"], "llamacpp": {"threads": "1"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


@pytest.fixture(params=engines.names(), scope="module")
def name(request) -> str:
    if request.param in ("vllm",):
        pytest.skip(missing("vllm", OPTIONS["vllm"]) or "vLLM has no kernels for heads of 8 numbers; see test_vllm.py")
    if reason := missing(request.param, OPTIONS.get(request.param)):
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def fast(name, folder) -> Iterator[Engine]:
    with open_engine(name, folder, "ngram", None, 3, OPTIONS.get(name), **EXACT.get(name, {})) as made:
        yield made


@pytest.fixture(scope="module")
def plain(name, folder) -> Iterator[Engine]:
    with open_engine(name, folder, "none", options=BARE.get(name), **EXACT.get(name, {})) as made:
        yield made


@pytest.fixture(params=["fast", "plain"])
def engine(request, fast, plain) -> Engine:
    return {"fast": fast, "plain": plain}[request.param]


def ids(text: str) -> list[int]:
    return [letters.TOKENS.index(letter) for letter in text]


def greedy(prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(letters.plain()(torch.tensor([text])).logits[0, -1].argmax()))
            if text[-1] == 0:
                break
    return text[len(prompt) :]


def test_temperature_0_is_the_argmax_with_speculation_and_without(engine):
    done = engine.generate([ids(p) for p in PROMPTS], COLD, max_tokens=16)
    assert [c.token_ids for c in done] == [greedy(ids(p), 16) for p in PROMPTS]
    assert all(c.error is None for c in done)


def test_text_and_its_ids_are_one_prompt(engine):
    text, raw = engine.generate("abcabc", COLD, max_tokens=9) + engine.generate("abcabc", COLD, max_tokens=9, raw=True)
    assert text.token_ids == greedy([1, *ids("abcabc"), 2], 9)
    assert raw.token_ids == greedy(ids("abcabc"), 9)
    assert (text.prompt_tokens, raw.prompt_tokens) == (8, 6)
    assert raw.text == "".join(letters.TOKENS[t] for t in raw.token_ids if t > 2)


def test_origins_and_counts(fast, plain):
    (drafted,), (slow,) = (e.generate(ids("abcabcabc"), COLD, max_tokens=30) for e in (fast, plain))
    assert drafted.token_ids == slow.token_ids
    assert set(slow.origins) == {Origin.PLAIN}
    assert slow.tau == 1
    assert drafted.stats.emitted == len(drafted.token_ids) == len(drafted.origins)
    if fast.capabilities.origins:
        assert sum(drafted.stats.accepted) == drafted.origins.count(Origin.ACCEPTED)
        assert sum(drafted.stats.drafted) > 0
    assert drafted.tau >= 1


def test_a_stream_is_the_completion_in_pieces(engine):
    chunks = list(engine.stream("abcabc", COLD, max_tokens=20))
    (whole,) = engine.generate("abcabc", COLD, max_tokens=20)
    assert "".join(c.text for c in chunks) == whole.text
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    assert [c.finish_reason is None for c in chunks] == [True] * (len(chunks) - 1) + [False]


def test_one_seed_one_text_and_samples_differ(engine):
    if not engine.capabilities.seed:
        pytest.skip("it does not offer seeds")
    first, again = (engine.generate("abc", WARM, max_tokens=12, n=3) for _ in range(2))
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert len({tuple(c.token_ids) for c in first}) > 1
    assert first[0].token_ids == engine.generate("abc", WARM, max_tokens=12)[0].token_ids


def test_a_completion_names_its_rule(engine):
    (done,) = engine.generate("abc", COLD, max_tokens=2)
    own = not isinstance(engine, Peer)
    assert (done.rule, done.lossless) == (("greedy", True) if own else ("its own", None))
    assert done.repeatable in (("bit for bit", "up to ties") if own else (None,))


def test_samples_without_a_seed_leave_the_callers_generator_alone(engine):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    done = engine.generate("abc", Sampling(1.5), max_tokens=24, n=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert done[0].token_ids != done[1].token_ids


@pytest.mark.parametrize("most", [0, 1, 2])
def test_max_tokens(engine, most):
    (done,) = engine.generate(ids("abc"), COLD, max_tokens=most)
    assert (len(done.token_ids), done.finish_reason) == (most, "length")


def test_end_tokens_and_stops(engine):
    (full,) = engine.generate("abcabc", COLD, max_tokens=30)
    wanted = full.token_ids[4]
    (cut,) = engine.generate("abcabc", COLD, max_tokens=30, stop_token_ids={wanted})
    assert cut.token_ids == full.token_ids[: full.token_ids.index(wanted) + 1]
    assert cut.finish_reason == "stop"
    string = full.text[3:5]
    (stopped,) = engine.generate("abcabc", COLD, max_tokens=30, stop=(string,))
    assert stopped.text == full.text[: full.text.index(string)]
    assert stopped.finish_reason == "stop"
    ended = engine.generate(["abc"] * 12, [Sampling(1.5, seed=i) for i in range(12)], max_tokens=30)
    assert any(c.finish_reason == "stop" for c in ended)
    assert all(0 not in c.token_ids[:-1] for c in ended)
    assert all((c.token_ids[-1] == 0) == (c.finish_reason == "stop") for c in ended)


def test_logprobs_are_the_models_own(name, engine, fast):
    can, close = engine.capabilities, ROUNDING.get(name, 1e-3)
    if not can.logprobs:
        pytest.skip("it does not offer logprobs")
    if engine is fast and "logprobs" in can.not_drafting:
        with pytest.raises(ValueError, match="logprobs with plain decoding only"):
            engine.submit("abc", COLD, GenerationOptions(logprobs=3))
        return
    (done,) = engine.generate(ids("abcabc"), COLD, max_tokens=8, logprobs=3)
    text = [*ids("abcabc"), *done.token_ids]
    with torch.inference_mode():
        expected = letters.plain()(torch.tensor([text])).logits[0, 5:-1].log_softmax(-1)
    for entry, token, row in zip(done.logprobs, done.token_ids, expected, strict=True):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=close)
        assert [v for _, v in entry.top_logprobs] == pytest.approx(row.topk(3).values.tolist(), abs=close)


def test_what_is_not_offered_is_refused(engine):
    can = engine.capabilities
    asked = {
        "top_p": Sampling(0.8, top_p=0.9),
        "min_p": Sampling(0.8, min_p=0.1),
        "logit_bias": Sampling(0.8, logit_bias={4: 1.0}),
        "allowed_token_ids": Sampling(0.8, allowed_token_ids=frozenset({3, 4})),
        "suppress_tokens": Sampling(0.8, suppress_tokens=frozenset({3})),
        "repetition_penalty": Sampling(0.8, repetition_penalty=1.2),
        "presence_penalty": Sampling(0.8, presence_penalty=0.5),
    }
    for word, sampling in asked.items():
        if word in can.sampling and word not in can.not_drafting:
            (done,) = engine.generate("abc", replace(sampling, seed=1), max_tokens=3)
            assert done.error is None
        elif word not in can.sampling:
            with pytest.raises(ValueError, match=word):
                engine.submit("abc", sampling)
    for offered, word, options in (
        (can.grammar, "grammar", GenerationOptions(grammar='root ::= "a"')),
        (can.grammar, "json_schema", GenerationOptions(json_schema=True)),
        (can.grammar, "regex", GenerationOptions(regex="a")),
        (can.min_tokens, "min_tokens", GenerationOptions(min_tokens=2)),
        (can.prompt_logprobs, "prompt_logprobs", GenerationOptions(prompt_logprobs=1)),
    ):
        if not offered:
            with pytest.raises(ValueError, match=word):
                engine.submit("abc", COLD, options)


def test_shaping_takes_effect(engine):
    can = engine.capabilities
    (free,) = engine.generate(ids("abcabc"), COLD, max_tokens=1)
    (token,) = free.token_ids
    ways = {
        "suppress_tokens": Sampling(0, suppress_tokens=frozenset({token})),
        "logit_bias": Sampling(0, logit_bias={token: -50.0}),
    }
    for word in ways.keys() & can.sampling - can.not_drafting:
        (other,) = engine.generate(ids("abcabc"), ways[word], max_tokens=1)
        assert other.token_ids != [token], word


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ([], {}, "prompt is empty"),
        ([999], {}, "outside 0 to 18"),
        ("a" * 500, {}, "context holds 160"),
        ("a", {"stop_token_ids": {99}}, "stop_token_ids names token 99"),
        ("a", {"speculation": Speculation(drafter="magic")}, "magic"),
        ("a", {"speculation": Speculation(verify="magic")}, "magic|rule of its own"),
    ],
)
def test_mistakes_are_one_sentence(engine, prompt, options, said):
    with pytest.raises(ValueError, match=said) as caught:
        engine.submit(prompt, COLD, GenerationOptions(**options))
    assert "\n" not in str(caught.value)
    assert len(engine.generate("a", COLD, max_tokens=1)[0].token_ids) == 1, "the engine goes on"


def test_leaving_a_stream_cancels_it(engine):
    stream = engine.stream("abc", WARM, max_tokens=120)
    next(stream)
    stream.close()
    assert len(engine.generate("hh", COLD, max_tokens=2)[0].token_ids) == 2


def test_speculation_by_request_where_offered(fast):
    options = GenerationOptions(max_tokens=12, speculation=Speculation(off=True))
    if not fast.capabilities.switch:
        with pytest.raises(ValueError, match="alike for all"):
            fast.submit("abcabc", COLD, options)
        return
    (done,) = (ticket.result() for ticket in fast.submit(ids("abcabc"), COLD, options))
    assert set(done.origins) == {Origin.PLAIN}
    assert done.token_ids == greedy(ids("abcabc"), 12)


def test_closing_ends_what_is_under_way(name, folder):
    engine = open_engine(name, folder, "none", options=BARE.get(name))
    tickets = [engine.submit("abc", WARM, GenerationOptions(max_tokens=150))[0] for _ in range(3)]
    engine.close()
    assert {ticket.result().finish_reason for ticket in tickets} <= {"cancelled", "length", "stop"}
    with pytest.raises(ValueError, match="the engine is closed"):
        engine.submit("abc")
    engine.close()


def test_an_unknown_drafter_or_option_is_refused(name, folder):
    with pytest.raises(ValueError, match="magic"):
        open_engine(name, folder, "magic")
    with pytest.raises(ValueError, match="nonsense"):
        open_engine(name, folder, "ngram", options={"nonsense": "1"})


def test_the_model_is_named(engine):
    assert "letters" in engine.label or "(float32)" in engine.label or "llama.cpp" in engine.label
    assert engine.version
    assert engine.stats["tokens"] >= 0
