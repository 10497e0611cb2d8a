"""Lossy rules in the engine: opt-in, labelled, and refused where their law would not be the declared one."""

from __future__ import annotations

import pytest

import letters_folder
import slipstream as ss
from slipstream.plan.ir.json_form import from_json, to_json
from slipstream.plan.ir.parser import parse_plan
from slipstream.plan.ir.text import text_of

GREEDY, WARM = ss.Sampling(0), ss.Sampling(1.0, seed=3)
PROMPTS = ["abcabc", "ponm", "aaaa"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return tuple(str(letters_folder.write(folder / name, noise)) for name, noise in (("large", 0.0), ("small", 0.1)))


def texts(model, prompts=PROMPTS, sampling=GREEDY, **options):
    with ss.Engine(model, **options) as engine:
        return [sample.text for sample in engine.generate(prompts, sampling, max_tokens=20)]


def test_the_ends_of_a_cascade_are_the_two_models(models):
    large, small = models
    for rule, same in (
        ("cascade_chow(alpha=0)", large),
        ("cascade_chow(alpha=1)", small),
        ("lenient(factor=1)", large),
    ):
        assert texts(large, drafter=small, verify=rule, depth=3) == texts(same, drafter="none"), rule


def test_a_cascade_is_one_text_at_every_depth(models):
    large, small = models
    plain = [texts(large, drafter=small, verify="cascade_tv(alpha=0.3)", depth=depth) for depth in (1, 3, None)]
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.parametrize("rule", ["cascade_token(alpha=0.3)", "typical", "lenient(factor=3)", "bild(fallback=0.2)"])
def test_outputs_say_that_they_are_lossy(models, rule):
    large, small = models
    with ss.Engine(large, drafter=small, verify=rule, depth=3) as engine:
        (warm,) = engine.generate("abc", WARM, max_tokens=10)
        (cold,) = engine.generate("abc", GREEDY, max_tokens=10)
        (plain,) = engine.generate("abc", GREEDY, max_tokens=10, speculation=ss.Speculation(off=True))
    assert (warm.lossless, warm.rule) == (False, rule)
    assert cold.lossless is False
    assert "argmax=true" in cold.rule
    assert cold.repeatable is not None
    assert (plain.lossless, plain.rule) == (True, "greedy")
    assert len(warm.token_ids) <= 10


def test_what_is_refused(models):
    large, small = models
    with pytest.raises(ValueError, match="depends on the depth, so it cannot adapt; give a depth"):
        ss.Engine(large, drafter=small, verify="typical")
    with ss.Engine(large, drafter=small) as engine:
        with pytest.raises(ValueError, match="depends on the depth, so it cannot adapt; give a depth"):
            engine.generate("abc", GREEDY, speculation=ss.Speculation(verify="bild"))
        with pytest.raises(ValueError, match="the rule typical verifies chains"):
            engine.generate("abc", WARM, speculation=ss.Speculation(verify="typical", shape="2x1"))
    with (
        ss.Engine(large, drafter="ngram", verify="cascade_tv", depth=2) as engine,
        pytest.raises(ValueError, match="mixes the laws of two models; it needs a draft model, and ngram is none"),
    ):
        engine.generate("abc", GREEDY)


def test_plans_with_lossy_rules():
    text = (
        'plan x\n  target = model("a")\n  d = draft_model("b")\n  %d = draft d depth=4\n  %s = score target %d\n'
        "  %v = verify lenient(factor=1.5) %s lossy=true\n  commit %v\n"
    )
    plan = parse_plan(text)
    assert text_of(plan) == text
    assert from_json(to_json(plan)) == plan
