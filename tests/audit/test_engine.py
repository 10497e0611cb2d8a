"""The audit from outside: passes an honest engine, catches planted biases, and its tests are what they say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import comb
from typing import Any

import pytest
import torch

import letters
from slipstream.audit.check import Check
from slipstream.audit.engines.continuations import REST, Continuations, by_chance, distance
from slipstream.audit.engines.engine import EngineAudit
from slipstream.audit.engines.engine_checks import seeds
from slipstream.audit.engines.engine_subject import EngineSubject
from slipstream.audit.engines.homogeneity import homogeneous, hypergeometric_tail, upper
from slipstream.audit.engines.surprise import surprises, tails
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Completion, Engine, GenerationOptions, Prompt, RequestHandle
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits

LAW = {0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}


def laws(paths):
    return [LAW for _ in paths]


def test_outcomes_are_a_partition():
    tree = Continuations.of(laws, frozenset({1}), length=2, width=2)
    joint = tree.joint(laws)
    assert joint == pytest.approx({(0, 0): 0.25, (0, 1): 0.15, (0, REST): 0.1, (1,): 0.3, (REST,): 0.2})
    assert [tree.outcome(t) for t in ([0, 0, 5], [0, 3], [1], [3, 0], [0, 1])] == [
        (0, 0), (0, REST), (1,), (REST,), (0, 1)
    ]  # fmt: skip
    assert tree.joint(lambda paths: [{0: 0.5} for _ in paths]) is None
    assert tree.joint(lambda paths: None) is None


def test_distance_and_chance():
    assert distance({0: 1.0}, {1: 1.0}) == 1
    rng, samples = random.Random(1), 500
    law = dict(enumerate(LAW.values()))
    seen = []
    for _ in range(200):
        counts = Counter(rng.choices(list(law), law.values(), k=samples))
        seen.append(distance({k: c / samples for k, c in counts.items()}, law))
    assert sum(seen) / len(seen) == pytest.approx(by_chance(law, samples), rel=0.1)


def test_the_tail_is_exact():
    for count, marked, first, second in [(3, 5, 6, 7), (0, 4, 5, 9), (4, 4, 9, 5), (2, 9, 6, 8)]:
        ways = {k: comb(first, k) * comb(second, marked - k) for k in range(min(marked, first) + 1)}
        total = comb(first + second, marked)
        low = Fraction(sum(v for k, v in ways.items() if k <= count), total)
        high = Fraction(sum(v for k, v in ways.items() if k >= count), total)
        expected = high if count > marked * first / (first + second) else low
        assert hypergeometric_tail(count, marked, first, second) == pytest.approx(float(expected))
    assert upper(3.841, 1) == pytest.approx(0.05, abs=1e-4)
    assert upper(18.307, 10) == pytest.approx(0.05, abs=1e-4)


def test_the_surprise_of_a_token_is_the_mass_at_or_below_it():
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.4, 0.1]], dtype=torch.float64)
    assert tails(probs, torch.tensor([1, 0])) == pytest.approx([0.5, 0.6])
    model, ids = letters.target().model, [3, 4, 5]
    with torch.inference_mode():
        law = letters.plain()(torch.tensor([[*ids, 6]])).logits[0, 2:].double().div(0.7).softmax(-1)
    expected = tails(law, torch.tensor([6, 7]))
    assert surprises(model, ids, [6, 7], 0.7) == pytest.approx(expected, rel=1e-4)


def test_one_law_passes_and_two_do_not():
    rng = random.Random(3)

    def draw(weights, count=2000):
        return Counter(rng.choices(range(len(weights)), weights, k=count))

    honest, other = [5, 4, 3, 2, 1, 1, 1, 1], [3, 4, 5, 2, 1, 1, 1, 1]
    assert all(homogeneous(draw(honest), draw(honest)).passed for _ in range(50))
    assert not homogeneous(draw(honest), draw(other)).passed


class Tampered(Engine):
    """An engine whose sampling is not what was asked for."""

    def __init__(self, inner: Engine, **changes: Any) -> None:
        self._inner, self._changes = inner, changes
        self.capabilities = inner.capabilities  # type: ignore[misc]

    model_info = property(lambda self: self._inner.model_info)  # type: ignore[assignment]
    text = property(lambda self: self._inner.text)  # type: ignore[assignment]
    stats = property(lambda self: self._inner.stats)  # type: ignore[assignment]

    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        assert sampling is not None
        changes = self._changes if sampling.temperature else {}
        return self._inner.submit(prompt, replace(sampling, **changes), options)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[NativeEngine, NativeEngine]]:
    with (
        NativeEngine(letters.target(), "ngram", "block", 3, limits=Limits(rows=64)) as fast,
        NativeEngine(letters.target(), "none", depth=0, limits=Limits(rows=64)) as plain,
    ):
        yield fast, plain


def box(fast: Engine, plain: Engine, **more: Any) -> EngineSubject:
    ids = [letters.TOKENS.index(letter) for letter in "abcabcabcab"]
    target = letters.target()
    return EngineSubject(fast, plain, target.model, frozenset({0}), ids, [ids, ids[:5]], **more)


def audited(subject: EngineSubject, samples: int) -> list[Check]:
    return [check.run() for check in EngineAudit(subject, samples).plan()]


def test_an_honest_engine_passes(pair):
    subject = box(*pair)
    checks = {check.name: check for check in audited(subject, 192)}
    assert all(check.passed for check in checks.values()), checks
    assert subject.figures["drafted"] > 50
    assert subject.figures["numerics_tv"] < 1e-5
    assert subject.figures["seed_repeats"] == 2
    warm = audited(box(*pair, temperature=0.7), 32)
    assert all(check.passed for check in warm)
    assert any("not judged" in check.detail for check in warm), "no logprobs tell the law at another temperature"


def test_the_argmax_in_place_of_a_sample_is_caught(pair):
    """As samplers of several engines do under speculation, whatever the temperature."""
    fast, plain = pair
    checks = audited(box(Tampered(fast, top_k=1), plain), 128)
    failed = {check.layer for check in checks if not check.passed}
    assert failed == {"sampled"}, checks


def test_one_token_of_another_law_is_caught(pair):
    fast, plain = pair
    checks = {check.name: check for check in seeds(box(Tampered(fast, temperature=2.0), plain, temperature=0.05))}
    assert not checks["no token that the law excludes, speculation on"].passed
    assert checks["no token that the law excludes, speculation off"].passed


def test_speculation_that_never_happened_is_no_pass(pair):
    _, plain = pair
    checks = audited(box(plain, plain), 32)
    assert ["nothing was drafted" in check.detail for check in checks if not check.passed] == [True]


def test_other_tokens_at_temperature_0_are_caught(pair):
    fast, plain = pair

    class Wrong(Tampered):
        def generate(self, prompts: Any, sampling: Any = None, **options: Any) -> list[Completion]:
            done = self._inner.generate(prompts, sampling, **options)
            if isinstance(sampling, Sampling) and sampling.temperature == 0:
                done = [replace(c, token_ids=[3 + (c.token_ids[0] - 2) % 16, *c.token_ids[1:]]) for c in done]
            return done

    checks = {check.name: check for check in audited(box(Wrong(fast), plain), 32)}
    assert not checks["temperature 0, speculation on and off"].passed
