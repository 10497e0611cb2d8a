"""`slipstream plan advise` and `slipstream plan predictors`, as a user runs them, on a tiny model."""

from __future__ import annotations

import xml.etree.ElementTree as xml

import pytest

import letters
from slipstream.bench.profile.traces import record_traces
from slipstream.cli.plan.advise import advice
from slipstream.engines.native.build import build_target
from slipstream.plan.passes.figures import Figures, MeasuredDepth


@pytest.fixture
def folder(tmp_path) -> str:
    letters.plain().save_pretrained(tmp_path / "letters")
    letters.tokenizer().save_pretrained(tmp_path / "letters")
    (tmp_path / "ab.jsonl").write_text('{"prompt": "abcabcabc"}\n')
    return str(tmp_path / "letters")


@pytest.mark.parametrize(("speed", "drafter"), [(150.0, "ngram"), (100.0, "none")])
def test_advice_is_five_lines(speed, drafter):
    figures = Figures("letters", 100.0, {"ngram": (MeasuredDepth(2, speed, 1.8),)})
    found = advice(letters.target(), figures)
    assert (found["drafter"], len(found["lines"])) == (drafter, 5)
    assert found["lines"][-1].startswith(f"Run: slipstream generate -m letters -d {drafter} ")


def test_predictors_are_scored_on_recorded_traces(folder, tmp_path, slipstream):
    load = ["--workload", str(tmp_path / "ab.jsonl"), "--depth", "3"]
    picture = tmp_path / "calibration.svg"
    done = slipstream("plan", "predictors", "-m", folder, "-d", "ngram", *load, "--picture", str(picture), "--json")
    assert xml.parse(picture).getroot().tag.endswith("svg")
    assert done.report["held_out"] is (len(done.report["workloads"]) > 1)
    names = [each["name"] for each in done.report["predictors"]]
    assert sorted(names) == ["average", "confidence", "counters", "gshare", "perceptron", "static"]
    losses = [each["log_loss"] for each in done.report["predictors"]]
    assert losses == sorted(losses)
    assert all(each["calibration"] and each["slots"] for each in done.report["predictors"])


def test_greedy_traces_hold_the_drafters_own_probability(folder, tmp_path):
    """The law of a greedy chain is one-hot, which is no confidence."""
    target, workload = build_target(folder), str(tmp_path / "ab.jsonl")
    (trace,) = record_traces(target, "draft_model", {"model": folder}, workload, depth=3, max_tokens=12)
    slots = [slot for cycle in trace for slot in cycle]
    assert all(0 < slot.confidence <= 1 for slot in slots)
    assert min(slot.confidence for slot in slots) < 0.999
    assert all(slot.accepted for slot in slots if slot.judged)  # the model drafts for itself


@pytest.mark.parametrize(("flags", "sentence"), [
    (["--predictor", "crystal"], "there is no predictor called 'crystal'; one of average, confidence, counters,"),
    (["--draft-cost", "2"], "--draft-cost is 2.0; it must be between 0 and 1"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(folder, slipstream, flags, sentence):
    done = slipstream("plan", "predictors", "-m", folder, *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
