"""The learned deferral score: its regression, its cross-validation, and its way from training to a route."""

from __future__ import annotations

import numpy as np
import pytest

import letters
import letters_folder
import slipstream as ss
from slipstream.bench.tasks.classifier import RidgeRegression, auc, folds, sigmoid, train_score
from slipstream.core.lossy.learned import DeferralClassifier
from slipstream.engines.cascade.request import RouteEngine, RouteOptions


def data(count: int = 100, width: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    features = chance.normal(size=(count, width)) * chance.uniform(0.1, 10, width) + 3
    labels = (chance.random(count) < sigmoid(4 * (features[:, 0] - 3) / features[:, 0].std())).astype(float)
    return features, labels


def test_the_gradient_is_zero_at_the_fit():
    features, labels = data()
    classifier = RidgeRegression(features, labels).fit(1.0)
    scale = features.std(0) + 1e-6
    error = sigmoid(classifier.logits(features)) - labels
    gradient = ((features - features.mean(0)) / scale).T @ error + classifier.weights * scale
    assert np.abs(gradient).max() < 1e-5


def test_out_of_fold_scores_are_honest():
    features, labels = data()
    trained = train_score(features.tolist(), labels.tolist())
    assert trained.figures["auc"] > 0.8
    assert auc(trained.out_of_fold, labels) == trained.figures["auc"]
    chance = np.random.default_rng(1)
    noise = train_score(chance.normal(size=(60, 80)).tolist(), (chance.random(60) < 0.5).astype(float).tolist())
    assert abs(noise.figures["auc"] - 0.5) < 0.25  # in sample it would be 1


def test_folds_are_a_partition_with_equal_shares():
    labels = np.array([1.0] * 30 + [0.0] * 20)
    parts = folds(labels)
    assert sorted(np.concatenate(parts)) == list(range(50))
    assert {float(labels[part].sum()) for part in parts} == {6.0}


def test_too_few_answers_of_one_kind():
    with pytest.raises(ValueError, match="10 answers of which 2 are right cannot train a classifier; it takes"):
        train_score([[0.0]] * 10, [1.0] * 2 + [0.0] * 8)


def test_auc_counts_ties_half():
    assert auc([0.1, 0.5, 0.5, 0.9], [0, 0, 1, 1]) == pytest.approx((0.5 + 3) / 4)


def test_a_route_with_a_learned_score(tmp_path):
    """The score of the route is the classifier's on the mean of the layer's outputs over the answer."""
    folder = str(letters_folder.write(tmp_path / "small", noise=0.1))
    with ss.Engine(folder, drafter="none") as small:
        prompt = small.text.encode("abcabc")
        (answer,) = small.generate("abcabc", ss.Sampling(0), max_tokens=8)
        layer, files = 1, small.target.files
        states = small.hidden_states([*prompt, *answer.token_ids], layer)
        assert states.shape[0] == len(prompt) + len(answer.token_ids) - 1
        width = states.shape[1]
        pooled = states[len(prompt) - 1 :].double().mean(0)
        sha256 = files.sha256
    from slipstream.models.sources.folder import weights_sha256

    weights = tuple(np.random.default_rng(3).normal(size=width).tolist())
    classifier = DeferralClassifier("small", sha256 or weights_sha256(files.path), layer, weights, 0.1, "t")
    path = tmp_path / "c.json"
    classifier.save(path)
    options = RouteOptions(0.5, f"learned(file={path})")
    with RouteEngine(lambda: ss.Engine(folder, drafter="none"), lambda: ss.Engine(letters.target()), options) as route:
        (done,) = route.generate("abcabc", ss.Sampling(0), max_tokens=8)
    assert done.route is not None
    assert done.route.score == pytest.approx(classifier.probability(pooled.tolist()), abs=1e-5)
    assert done.rule == f"route(score=learned(file={path}), threshold=0.5)"
    DeferralClassifier("other", "0" * 64, layer, weights, 0.1, "t").save(path)
    with (
        RouteEngine(lambda: ss.Engine(folder, drafter="none"), lambda: ss.Engine(letters.target()), options) as route,
        pytest.raises(ValueError, match=r"was trained for other \(sha256 0{12}\), and .*small is another model"),
    ):
        route.generate("abcabc", ss.Sampling(0), max_tokens=8)
