"""Captured cycles of lossy rules emit the tokens of the ordinary path: the same law and the same draws."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from captured_pair import decoded, use_small_blocks
from slipstream.core.device import DeviceRule
from slipstream.core.lossy.accept import Lenient
from slipstream.core.lossy.cascade import ChowCascade
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.engines.job import DecodingPlan
from slipstream.engines.native.planning import argmax_form

CUT = Sampling(temperature=0.9, top_k=20, top_p=0.9)
GREEDY, WARM = Sampling(0), Sampling(1.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.mark.parametrize(
    ("rule", "sampling", "drafter"),
    [("cascade_tv(alpha=0.4)", WARM, "draft_model"), ("cascade_token(alpha=0.9)", GREEDY, "draft_model"),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in [
         ("cascade_chow(alpha=0.97)", WARM, "draft_model"), ("cascade_chow(alpha=0.97)", GREEDY, "draft_model"),
         ("cascade_difference(alpha=0.01)", CUT, "draft_model"),
         ("cascade_difference(alpha=0.002)", GREEDY, "draft_model"), ("cascade_tv(alpha=0.2)", GREEDY, "draft_model"),
         ("cascade_token(alpha=0.9)", WARM, "draft_model"), ("typical(epsilon=0.02)", WARM, "draft_model"),
         ("typical(epsilon=0.03)", GREEDY, "draft_model"), ("lenient(factor=2)", CUT, "draft_model"),
         ("lenient(factor=1.5)", GREEDY, "draft_model"), ("bild(fallback=0.02, rollback=4)", WARM, "draft_model"),
         ("bild(fallback=0.02, rollback=4)", GREEDY, "draft_model"), ("lenient(factor=2)", WARM, "ngram"),
         ("typical(epsilon=0.02)", GREEDY, "ngram")])],
)  # fmt: skip
def test_captured_cycles_emit_what_the_ordinary_path_emits(rule, sampling, drafter):
    name = argmax_form(rule) if sampling.temperature == 0 else rule
    plan = DecodingPlan(drafter, name, 2)
    expected, _ = decoded(False, plan, sampling, (7, 6), (None, 0))
    jobs, cycles = decoded(True, plan, sampling, (7, 6), (None, 0))
    assert cycles > 1, "the ordinary path ran"
    assert [job.row.output for job in jobs] == [job.row.output for job in expected]
    assert [job.row.origins for job in jobs] == [job.row.origins for job in expected]
    ours, theirs = ([e.logprob for i in each[1].undecoded() for e in i.logprobs] for each in (jobs, expected))
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert [job.stats.accepted for job in jobs] == [job.stats.accepted for job in expected]


@pytest.mark.slow
def test_a_cascade_without_a_depth_drafts_in_every_cycle():
    plan = DecodingPlan("draft_model", "cascade_tv(alpha=0.4, argmax=true)", None)
    jobs, cycles = decoded(True, plan, GREEDY, (4,), (None,))
    expected, _ = decoded(False, plan, GREEDY, (4,), (None,))
    assert cycles
    assert jobs[0].row.output == expected[0].row.output


def test_rules_with_other_options_have_graphs_of_their_own():
    assert rules.make("cascade_tv(alpha=0.4)").device_rule is rules.make("cascade_tv(alpha=0.4)").device_rule
    assert rules.make("cascade_tv(alpha=0.4)").device_rule is not rules.make("cascade_tv(alpha=0.2)").device_rule
    for name in ("cascade_token(alpha=0.4, argmax=true)", "lenient(factor=2)"):
        rule = rules.make(name).device_rule
        assert rule is not None
        assert DeviceRule.from_json(list(rule.to_json())) is rule


def test_a_rule_that_changes_another_is_not_captured_as_the_other():
    class Own(ChowCascade):
        def mixture(self, target_probs, draft_probs):
            return target_probs

    class Stricter(Lenient):
        def accepts(self, draft, target_probs, noise):
            return super().accepts(draft, target_probs, noise)

    assert Own().device_rule is None
    assert Stricter().device_rule is None
