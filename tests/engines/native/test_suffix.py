"""Earlier outputs of an engine draft later ones of the same tenant, and never meet the same coins again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import letters
import slipstream as ss
from slipstream.engines.native.engine import NativeEngine

GREEDY = ss.Sampling(temperature=0)
SHORT = {"max_tokens": 24, "ignore_eos": True}
DEEP = ss.Speculation(depth=6)


@pytest.fixture
def engine() -> Iterator[NativeEngine]:
    with NativeEngine(letters.target(), "suffix") as opened:
        yield opened


def cycles(engine: NativeEngine, **options) -> int:
    done = engine.generate("abcabc", GREEDY, **SHORT, **{"speculation": DEEP} | options)[0]
    return done.stats.cycles


def test_a_repeated_answer_takes_few_cycles_for_the_same_tenant_only(engine):
    first = cycles(engine, tenant="a")
    assert cycles(engine, tenant="a") <= 6 < first
    assert cycles(engine, tenant="b") == first
    without = ss.Speculation(depth=6, history=False)
    assert cycles(engine, tenant="a", speculation=without) == first
    assert cycles(engine, tenant="c", speculation=without) == first
    assert cycles(engine, tenant="c") == first, "an answer that asked for it is not remembered"


@pytest.mark.parametrize(("rule", "remembered"), [("token", False), ("block", False), ("coupled", True)])
def test_a_seed_meets_no_memory_unless_the_noise_is_shared(engine, rule, remembered):
    sampling = ss.Sampling(temperature=1.0, seed=5)
    options = {**SHORT, "speculation": ss.Speculation(depth=6, verify=rule)}
    first, second = (engine.generate("abcabc", sampling, **options)[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert (first.stats.cycles == second.stats.cycles) is not remembered
    engine.generate("ab", sampling, **options)  # when it is admitted, those before were remembered or not
    assert (engine.drafter("suffix").history.size > 0) is remembered
    for _ in range(2):
        engine.generate("ab", ss.Sampling(temperature=1.0), **options)
    assert engine.drafter("suffix").history.size > 0


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_depth_of_such_a_request_does_not_depend_on_earlier_ones(engine, rule):
    """The policy learns from every request, so it must not choose the depth."""
    options = {**SHORT, "speculation": ss.Speculation(verify=rule)}
    sampling = ss.Sampling(temperature=1.0, seed=5)
    first = engine.generate("abcabc", sampling, **options)[0]
    engine.generate(["ponm"] * 3, ss.Sampling(temperature=1.0), **options)
    second = engine.generate("abcabc", sampling, **options)[0]
    assert (second.token_ids, second.stats) == (first.token_ids, first.stats)


def test_greedy_and_coupled_texts_are_those_of_plain_decoding(engine):
    for sampling in (GREEDY, ss.Sampling(temperature=0.9, seed=3)):
        plain = engine.generate(["abc", "ponm"], sampling, **SHORT, speculation=ss.Speculation(off=True))
        for _ in range(2):
            done = engine.generate(["abc", "ponm"], sampling, **SHORT, speculation=DEEP)
            assert [sample.token_ids for sample in done] == [sample.token_ids for sample in plain]
