"""Scores predictors on recorded traces: log-loss, calibration, and tokens per second if a policy obeyed them.

A trace is held out: the predictor first learns the traces of the other workloads, and then goes through it as a policy
would, learning as it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.plan.predictors.base import Predictor, Trace

BINS = 5  # of the calibration curve


@dataclass(frozen=True)
class PredictorScore:
    """`calibration`: (predicted, observed, slots) of each bin. `speed`: tokens per plain pass if obeyed."""

    name: str
    slots: int
    log_loss: float
    calibration: tuple[tuple[float, float, int], ...]
    calibration_error: float  # mean distance of predicted and observed, by slots
    speed: float


def score_held_out(
    name: str, kind: type[Predictor], workloads: Mapping[str, Sequence[Trace]], draft_cost: float = 0.1
) -> PredictorScore:
    """Score a predictor on the traces of each workload, after it has learnt those of the other workloads."""
    traces, training = list[Trace](), list[Sequence[Trace]]()
    for held_out, own in workloads.items():
        others = [trace for other, known in workloads.items() if other != held_out for trace in known]
        traces += own
        training += [others] * len(own)
    return score(name, kind, traces, draft_cost, training)


def trained(kind: type[Predictor], traces: Sequence[Trace]) -> Predictor:
    """A predictor that has gone through some traces."""
    predictor = kind()
    for slot in (slot for trace in traces for cycle in trace for slot in cycle if slot.judged):
        predictor.learn(slot)
    return predictor


def score(
    name: str,
    kind: type[Predictor],
    traces: Sequence[Trace],
    draft_cost: float = 0.1,
    training: Sequence[Sequence[Trace]] = (),
) -> PredictorScore:
    """Run one predictor over each trace. `draft_cost`: of a drafted token, as a share of a plain pass. `training`: the
    traces that it learns before each of them; by default none."""
    pairs: list[tuple[float, bool]] = []
    tokens = seconds = 0.0
    for trace, others in zip(traces, training or [[]] * len(traces), strict=True):
        predictor = trained(kind, others)
        for cycle in trace:
            obeyed, chance = 0, 1.0
            going = True
            for slot in cycle:
                predicted = predictor.predict(slot.depth, slot.confidence)
                if slot.judged:
                    pairs.append((predicted, slot.accepted))
                chance *= predicted
                going = going and chance > draft_cost  # a token that is not worth its cost ends the draft
                obeyed += going
            kept = sum(slot.accepted for slot in cycle[:obeyed])
            tokens, seconds = tokens + kept + 1, seconds + 1 + draft_cost * obeyed
            for slot in cycle:
                if slot.judged:
                    predictor.learn(slot)
    return _scored(name, pairs, tokens / seconds if seconds else 0.0)


def _scored(name: str, pairs: Sequence[tuple[float, bool]], speed: float) -> PredictorScore:
    if not pairs:
        raise ValueError("the traces hold no drafted token; record some with a drafter that proposes")
    loss = -sum(math.log(min(max(p if hit else 1 - p, 1e-6), 1.0)) for p, hit in pairs) / len(pairs)
    bins = []
    for n in range(BINS):
        own = [(p, hit) for p, hit in pairs if min(int(p * BINS), BINS - 1) == n]
        if own:
            bins.append((sum(p for p, _ in own) / len(own), sum(hit for _, hit in own) / len(own), len(own)))
    error = sum(abs(p - observed) * count for p, observed, count in bins) / len(pairs)
    return PredictorScore(name, len(pairs), loss, tuple(bins), error, speed)
