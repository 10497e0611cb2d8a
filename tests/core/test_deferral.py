"""Scores of a small model's answer."""

from __future__ import annotations

import math

import pytest

from slipstream.core.lossy.deferral import AnswerEvidence, build_score, check_threshold, scores
from slipstream.core.lossy.learned import DeferralClassifier
from slipstream.core.spec import parse_spec, spec_name

HALF = math.log(0.5)


def test_values_by_hand():
    answer = AnswerEvidence("x", [0.0, HALF, 2 * HALF], [[0.0], [HALF, HALF], [HALF]])
    assert build_score("mean").score([answer]) == pytest.approx(0.5)
    assert build_score("quantile(q=0)").score([answer]) == pytest.approx(0.25)
    assert build_score("quantile(q=1)").score([answer]) == 1.0
    entropies = 0, math.log(2), math.log(2)  # the rest of the last one is a half too
    assert build_score("entropy(k=2)").score([answer]) == pytest.approx(1 - sum(entropies) / 3 / math.log(3))
    texts = ["so it is 4.", "4", "it is 5", "1 + 3 = 4.0"]
    assert build_score("agreement(n=4)").score([AnswerEvidence(text) for text in texts]) == 0.75
    assert build_score("agreement").score([AnswerEvidence("a b"), AnswerEvidence("ab")]) == 1.0


@pytest.fixture
def classifier(tmp_path):
    path = tmp_path / "classifier.json"
    DeferralClassifier("letters", "0" * 64, 1, (1.0, -2.0), 0.5, "t, 9 problems", {"auc": 0.7}).save(path)
    return path


@pytest.mark.parametrize("name", scores)
def test_scores_lie_between_0_and_1(name, classifier):
    score = build_score(f"learned(file={classifier})" if name == "learned" else name)
    for logprob in (0.0, 1e-7, -1e-3, -5.0, -1e4):
        answer = AnswerEvidence("a", [logprob] * 3, [[logprob] * 20] * 3, [logprob, -3 * logprob])
        assert 0 <= score.score([answer] * score.samples) <= 1
    assert 0 <= score.score([AnswerEvidence("")] * score.samples) <= 1
    assert score.name == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("median", "there is no score called 'median'"),
        ("quantile(q=2)", "q of the score quantile is 2.0; it must be between 0 and 1"),
        ("entropy(k=0)", "k of the score entropy is 0"),
        ("agreement(n=1)", "n of the score agreement is 1; it must be 2 or more"),
        ("mean(n=1)", "the score mean has no option 'n'; it takes none"),
        ("mean(", "is not of the form name or"),
        ("quantile(0.1)", "is not of the form name or"),
    ],
)
def test_unknown_scores_and_options(spec, message):
    with pytest.raises(ValueError, match=message):
        build_score(spec)


@pytest.mark.parametrize("threshold", [-0.1, 1.01, math.nan, math.inf])
def test_thresholds_have_a_range(threshold):
    with pytest.raises(ValueError, match="it must be between 0"):
        check_threshold(threshold)


def test_specs():
    assert parse_spec("block") == ("block", {})
    assert parse_spec(" a( b = 1 , c=x ) ") == ("a", {"b": "1", "c": "x"})
    assert spec_name("lenient(factor=2)") == "lenient"
    assert spec_name("not one!") == "not one!"


def test_a_learned_score_by_hand(classifier):
    score = build_score(f"learned(file={classifier})")
    assert score.score([AnswerEvidence("a", states=[1.0, 0.5])]) == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert score.score([AnswerEvidence("")]) == 0
    with pytest.raises(ValueError, match="has 2 weights, and the model 3 features"):
        score.score([AnswerEvidence("a", states=[1.0, 2.0, 3.0])])


def test_files_that_hold_no_classifier(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"kind": "x", "weights": "y"}')
    with pytest.raises(ValueError, match="the score learned needs a file"):
        build_score("learned")
    with pytest.raises(ValueError, match="there is no classifier in '/nowhere'; train one with"):
        build_score("learned(file=/nowhere)")
    with pytest.raises(ValueError, match="is not the file of a deferral classifier"):
        build_score(f"learned(file={other})")
