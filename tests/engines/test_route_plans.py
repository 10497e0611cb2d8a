"""Plans with routes, run by the engine, `generate`, `bench` and `audit`."""

from __future__ import annotations

import pytest

import letters_folder
import slipstream as ss
from slipstream.engines.cascade.request import RouteEngine
from slipstream.plan.ir.build import add_route, build_plan
from slipstream.plan.ir.nodes import PlanError
from slipstream.plan.ir.text import text_of
from slipstream.plan.lower.peers import lower_peer

PROMPTS = ["abcabcab", "ponm", "kl"]
GREEDY = ss.Sampling(0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routes")
    letters_folder.write(folder / "large")
    letters_folder.write(folder / "small", noise=0.1)
    return folder


@pytest.fixture(scope="module")
def routed(place):
    def make(level: str, threshold: float, drafter: str = "none", **options) -> ss.Plan:
        plan = build_plan(str(place / "large"), drafter)
        return add_route(plan, str(place / "small"), level=level, threshold=threshold, **options)

    return make


@pytest.fixture(scope="module")
def answers(place):
    """Of the small and of the large model."""

    def texts(name: str) -> list[str]:
        with ss.Engine(str(place / name), "none") as engine:
            return [sample.text for sample in engine.generate(PROMPTS, GREEDY, max_tokens=10)]

    return {name: texts(name) for name in ("small", "large")}


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_request_route_hands_over_at_most_at_the_threshold(routed, answers, drafter):
    with ss.open_plan(routed("request", 0.999, drafter, score="quantile(q=0.1)")) as engine:
        assert isinstance(engine, RouteEngine)
        scores = sorted(s.route.score for s in engine.generate(PROMPTS, GREEDY, max_tokens=10))
    at = scores[1]
    with ss.open_plan(routed("request", at, drafter, score="quantile(q=0.1)")) as engine:
        samples = engine.generate(PROMPTS, GREEDY, max_tokens=10)
    assert {sample.route.model for sample in samples} == {"small", "large"}
    for sample, small, large in zip(samples, answers["small"], answers["large"], strict=True):
        assert sample.text == (large if sample.route.model == "large" else small)
        assert sample.route.model == ("large" if sample.route.score <= at else "small")
        assert (sample.lossless, sample.rule) == (False, f"route(score=quantile(q=0.1), threshold={at:g})")


def test_a_token_route_is_the_rule_bild(routed, place):
    how = {"verify": "bild(fallback=0.1)", "depth": 8}
    with ss.Engine(str(place / "large"), str(place / "small"), **how) as engine:
        expected = engine.generate(PROMPTS, GREEDY, max_tokens=10)
    with ss.Engine(plan=routed("token", 0.1)) as engine:
        samples = engine.generate(PROMPTS, GREEDY, max_tokens=10)
    assert [sample.token_ids for sample in samples] == [sample.token_ids for sample in expected]
    assert {(sample.rule, sample.lossless) for sample in samples} == {("bild(fallback=0.1, argmax=true)", False)}
    assert sum(sum(sample.stats.drafted) for sample in samples), "nothing was drafted, so nothing was compared"


def test_one_engine_cannot_run_a_request_route(routed):
    with pytest.raises(PlanError, match=r"route %r: it needs two engines; slipstream.open_plan opens both"):
        ss.Engine(plan=routed("request", 0.5))
    with pytest.raises(PlanError, match=r"route %r: vllm has no routes; native has"):
        lower_peer(routed("request", 0.5), "vllm", ("none",), ())


@pytest.mark.parametrize("level", ["request", "token"])
def test_generate_bench_and_audit(slipstream, routed, tmp_path, level):
    file = tmp_path / "route.plan"
    file.write_text(text_of(routed(level, 0.6)))
    report = slipstream("generate", "abc", "--plan", str(file), "--max-tokens", "8", "--json").report
    assert report["lossless"] is False
    prompts = tmp_path / "w.jsonl"
    prompts.write_text('{"prompt": "abcabc"}\n')
    words = ["--workload", str(prompts), "--repeats", "1", "--max-tokens", "8"]
    records = slipstream("bench", "--plan", str(file), *words, "--json").report["records"]
    assert [(record["lossless"], record["rule"]) for record in records] == [
        (True, "plain"),
        (False, "route(score=mean, threshold=0.6)" if level == "request" else "bild(fallback=0.6)"),
    ]
    refused = slipstream("plan", "lower", str(file), "--emit", "vllm")
    assert f"{file}:6:3: route %r: vllm has no routes; native has" in refused.stderr
    audit = slipstream("audit", "--plan", str(file), "--json")
    if level == "request":
        assert audit.returncode == 2
        assert "route %r: a route has no law of its own; audit the plan without it" in audit.stderr
    else:
        assert audit.report["passed"]


def test_flags_show_a_route(slipstream):
    words = "plan", "show", "-m", "large", "-d", "none", "--route", "request", "--small", "tiny"
    shown = slipstream(*words, "--threshold", "0.8", "--score", "entropy(k=5)").stdout
    assert "  %r = route small %v threshold=0.8 score=entropy(k=5) lossy=true\n  commit %r\n" in shown
    assert "--route needs --small MODEL" in slipstream("plan", "show", "--route", "request").stderr
    assert "--small needs --route request" in slipstream("plan", "show", "--small", "tiny").stderr
    settings = slipstream("plan", "lower", *words[2:], "--emit", "native", "--json").report["settings"]
    assert settings["route"] == {"threshold": 0.5, "score": "mean"}
    assert (settings["small"]["model"], settings["large"]["model"]) == ("tiny", "large")
