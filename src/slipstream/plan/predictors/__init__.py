"""Predictors of acceptance, by name: will the next drafted token be accepted?"""

from __future__ import annotations

from slipstream.core.registry import Registry
from slipstream.plan.predictors.base import Predictor

predictors: Registry[Predictor] = Registry(
    "predictor",
    {
        "static": "slipstream.plan.predictors.history:Static",
        "counters": "slipstream.plan.predictors.history:Counters",
        "gshare": "slipstream.plan.predictors.history:Gshare",
        "perceptron": "slipstream.plan.predictors.perceptron:Perceptron",
        "confidence": "slipstream.plan.predictors.perceptron:Confidence",
        "average": "slipstream.plan.predictors.history:Average",
    },
)
