"""The features of audio are those of transformers' extractor, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from slipstream.models.speech.audio import RATE
from slipstream.models.speech.features import LogMel


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_features_are_those_of_the_library(bins, seconds):
    extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=3)
    samples = np.random.default_rng(1).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)
    padded = np.pad(samples, (0, 3 * RATE - len(samples)))
    expected = extractor(padded, sampling_rate=RATE, return_tensors="np", device="cpu")["input_features"][0]
    features = LogMel(extractor, 3 * RATE, "cpu")(samples)
    assert torch.equal(features, torch.from_numpy(expected))
