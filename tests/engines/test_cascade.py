"""Routes between two models of letters."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import letters
import letters_folder
import slipstream as ss
from slipstream.engines.base import Engine, GenerationOptions
from slipstream.engines.cascade.lazy import LazyEngine
from slipstream.engines.cascade.request import RouteEngine, RouteOptions
from slipstream.engines.cascade.rescore import evidence_of_answer, rescored, rescores

GREEDY = ss.Sampling(0)
PROMPTS = ["abcabc", "ponm", "aaaa", "fghij", "kl"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(letters_folder.write(tmp_path_factory.mktemp("route") / "small", noise=0.1))


def large() -> Engine:
    return ss.Engine(letters.target(), drafter="none")


@pytest.fixture
def route(folder):
    engines: list[RouteEngine] = []

    def make(threshold: float, **options) -> RouteEngine:
        chosen = RouteOptions(threshold, **options)
        engines.append(RouteEngine(lambda: ss.Engine(folder, drafter="none"), large, chosen))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def texts(engine: Engine) -> list[str]:
    return [sample.text for sample in engine.generate(PROMPTS, GREEDY, max_tokens=12)]


def test_at_0_the_small_model_alone_and_at_1_the_large_one_alone(route, folder):
    with ss.Engine(folder, drafter="none") as small, large() as big:
        own, other = texts(small), texts(big)
    assert own != other
    kept, handed = route(0.0), route(1.0)
    assert texts(kept) == own
    assert texts(handed) == other
    assert (kept.small.loads, kept.large.loads) == (1, 0)
    assert (handed.small.loads, handed.large.loads) == (0, 1)
    assert kept.stats["handed_over"] == 0
    assert handed.stats["handed_over"] == len(PROMPTS)


@pytest.mark.parametrize("score", ["mean", "quantile(q=0.5)", "entropy(k=5)", "agreement(n=3)"])
def test_a_request_is_handed_over_at_most_at_the_threshold(route, folder, score):
    engine = route(0.999, score=score)
    done = engine.generate(PROMPTS, GREEDY, max_tokens=12)
    marks = sorted(sample.route.score for sample in done)
    assert all(0 <= mark <= 1 for mark in marks)
    if score == "agreement(n=3)":
        return
    with ss.Engine(folder, drafter="none") as small, large() as big:
        own, other = texts(small), texts(big)
    at = marks[2]
    for sample, ours, theirs in zip(route(at, score=score).generate(PROMPTS, GREEDY, max_tokens=12), own, other,
                                    strict=True):  # fmt: skip
        assert sample.route.model == ("large" if sample.route.score <= at else "small")
        assert sample.text == (theirs if sample.route.model == "large" else ours)
        assert sample.lossless is False
        assert sample.rule == f"route(score={score}, threshold={at:g})"
        assert sample.logprobs == []  # only the score asked for them


def test_generation_gives_the_evidence_that_a_further_pass_gives(folder):
    with ss.Engine(folder, drafter="none") as engine:
        (answer,) = engine.generate("abcabc", GREEDY, max_tokens=6, logprobs=3)
        again = rescored(engine, "abcabc", answer, 3)
        own = evidence_of_answer(answer)
        assert len(own.logprobs) == len(answer.token_ids)
        assert list(own.logprobs) == pytest.approx(again.logprobs, abs=1e-5)
        for ours, theirs in zip(own.top_logprobs, again.top_logprobs, strict=True):
            assert list(ours) == pytest.approx(theirs, abs=1e-5)
        assert not rescores(engine, 100), "on a CPU it is never faster"


def test_on_a_gpu_answers_are_read_again_only_for_what_captured_cycles_do_not_record():
    model = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    engine = SimpleNamespace(target=SimpleNamespace(model=model), capabilities=SimpleNamespace(prompt_logprobs=True))
    assert [rescores(engine, top) for top in (0, 20, 21)] == [False, False, True]  # type: ignore[arg-type]


def test_streams_and_samples(route):
    for threshold in (0.0, 0.3, 1.0):
        engine = route(threshold)
        chunks = list(engine.stream("abc", GREEDY, max_tokens=8))
        (whole,) = engine.generate("abc", GREEDY, max_tokens=8)
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert chunks[-1].finish_reason == whole.finish_reason
        samples = engine.generate("abc", ss.Sampling(1.0, seed=5), max_tokens=8, n=3, logprobs=1)
        assert len({sample.text for sample in samples}) > 1
        assert all(len(sample.logprobs) == len(sample.token_ids) for sample in samples)


def test_errors_reach_the_caller(route):
    engine = route(0.5)
    with pytest.raises(ValueError, match="a route takes text or messages"):
        engine.generate([3, 4, 5], GREEDY)
    with pytest.raises(ValueError, match="context holds 160"):
        engine.generate("a" * 200, GREEDY)
    with pytest.raises(ValueError, match=r"threshold is 1\.5; it must be between 0"):
        route(1.5)


def test_an_idle_engine_is_unloaded_and_loaded_again():
    lazy = LazyEngine(large, idle_seconds=0.05)
    with lazy.use() as engine:
        assert not lazy.unload()  # in use
        (first,) = engine.generate("abc", GREEDY, max_tokens=4)
    for _ in range(100):
        time.sleep(0.02)
        if lazy.engine is None:
            break
    assert lazy.engine is None
    with lazy.use() as engine:
        (second,) = engine.generate("abc", GREEDY, max_tokens=4)
    assert (second.text, lazy.loads) == (first.text, 2)
    lazy.close()
    with pytest.raises(ValueError, match="idle_seconds is -1"):
        LazyEngine(large, -1)


def test_a_cancelled_request_ends(route):
    for threshold in (0.5, 1.0):
        (handle,) = route(threshold).submit("abc", GREEDY, GenerationOptions(140, ignore_eos=True))
        handle.cancel()
        assert handle.result().finish_reason in ("cancelled", "length")
