"""Lossy rules against the laws that they declare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.audit.rational.lossy import MIXTURES, check_mixture
from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.audit.tables.lossy import mixture_subject, process_subject
from slipstream.audit.tables.run import plan_rules
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling

PAIR = Pair.random(2, vocab=3)
PROCESSES = ["typical(epsilon=0.6, delta=0.7)", "lenient(factor=1.5)", "bild(fallback=0.3, rollback=1.5)"]


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("alpha", ["0.05", "0.4"])
def test_a_cascade_has_one_law_at_every_position(name, alpha):
    subject = mixture_subject(name, alpha, 2)
    for changed in (
        subject,
        replace(subject, policy=HistoryPolicy),
        replace(subject, sampling=Sampling(temperature=0.7, top_k=2)),
    ):
        check = check_cycles("x", changed, PAIR)
        assert check.passed, check.detail
    assert check_endings("x", subject, PAIR, max_tokens=3).passed
    assert check_mixture("x", name, alpha, PAIR, cycles=1).passed


@pytest.mark.parametrize("name", ["cascade_chow", "cascade_token"])
def test_a_cascade_is_lossy_and_the_audit_sees_it(name):
    assert not check_cycles("x", replace(mixture_subject(name, "0.4", 2), declared=None), PAIR).passed


@pytest.mark.parametrize("spec", PROCESSES)
def test_a_process_at_a_fixed_depth(spec):
    subject = process_subject(rules.make(spec), 2)
    check = check_cycles("x", subject, PAIR)
    assert check.passed, check.detail
    assert check_sampled("x", subject, PAIR, 500, length=3).passed
    assert not check_cycles("x", replace(subject, process=None), PAIR).passed
    assert not check_cycles("x", replace(subject, depth=1), PAIR).passed  # its law depends on the depth


@pytest.mark.parametrize("spec", [*PROCESSES, *(f"{name}(alpha=0.4)" for name in MIXTURES)])
def test_plans_of_lossy_rules(spec):
    plan = plan_rules([spec], PAIR, 2, 1000)
    assert all(spec in check.name for check in plan)
    (greedy,) = (check for check in plan if "temperature 0" in check.name)
    assert greedy.run().passed


def test_a_lenient_factor_of_1_is_the_token_rule():
    lenient = Subject(lambda: rules.make("lenient(factor=1)"))
    assert check_cycles("x", lenient, PAIR).passed
