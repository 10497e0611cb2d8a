"""Metrics for Prometheus, under the names that dashboards for vLLM know, with the prefix `slipstream:`.

Each HTTP process counts its own requests. Snapshots of all processes are added up when somebody asks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.logs import note

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
COUNTERS = {
    "prompt_tokens": "Prompt tokens of finished requests.",
    "generation_tokens": "Tokens generated for finished requests.",
    "spec_decode_num_drafts": "Cycles in which tokens were drafted.",
    "spec_decode_num_draft_tokens": "Drafted tokens.",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were accepted.",
    "spec_decode_num_drafter_failures": "Requests whose drafter failed; they went on without it.",
    "requests_rejected": "Requests refused because too many were under way.",
}
LABELLED = {
    "request_success": (("finished_reason",), "Finished requests by finish reason."),
    "request_lossy": (("rule", "lossless"), "Finished requests whose output is not the model's own, by lossy rule."),
    "spec_decode_num_accepted_tokens_per_pos": (("position",), "Accepted tokens by position in the draft."),
}
TIMES = {
    "time_to_first_token_seconds": "From a request to its first token.",
    "time_between_chunks_seconds": "Between the chunks of one request.",
    "request_queue_time_seconds": "That a request waited for a row.",
    "e2e_request_latency_seconds": "From a request to its last token.",
}


class MetricGauge(NamedTuple):
    """A value that is read when somebody asks."""

    name: str
    about: str
    value: float


class SecondsHistogram:
    """Observations of seconds, by bucket."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(SECONDS) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def add(self, other: SecondsHistogram) -> None:
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class Metrics:
    """The counts of one HTTP process, or the sum of several. It can be pickled."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.labelled: dict[str, dict[tuple[str, ...], int]] = {name: {} for name in LABELLED}
        self.times = {name: SecondsHistogram() for name in TIMES}

    def reject(self) -> None:
        self.counts["requests_rejected"] += 1

    def finished(self, sample: Completion, seconds: float, prompt: bool) -> None:
        """A sample is done; `prompt`: it is the first of its prompt, whose tokens count once."""
        stats, counts = sample.stats, self.counts
        self._count("request_success", (sample.finish_reason,), 1)
        if sample.lossless is False:
            self._count("request_lossy", (sample.rule, "false"), 1)
        counts["prompt_tokens"] += sample.prompt_tokens if prompt else 0
        counts["generation_tokens"] += sample.completion_tokens
        counts["spec_decode_num_drafts"] += stats.drafted[0] if stats.drafted else 0
        counts["spec_decode_num_draft_tokens"] += sum(stats.drafted)
        counts["spec_decode_num_accepted_tokens"] += sum(stats.accepted)
        counts["spec_decode_num_drafter_failures"] += stats.failures
        for position, count in enumerate(stats.accepted):
            self._count("spec_decode_num_accepted_tokens_per_pos", (str(position),), count)
        self.times["request_queue_time_seconds"].observe(sample.queue_seconds)
        self.times["e2e_request_latency_seconds"].observe(seconds)

    def _count(self, name: str, values: tuple[str, ...], count: int) -> None:
        self.labelled[name][values] = self.labelled[name].get(values, 0) + count

    def add(self, other: Metrics) -> None:
        """Add the counts of another process."""
        for name, count in other.counts.items():
            self.counts[name] += count
        for name, by_values in other.labelled.items():
            for values, count in by_values.items():
                self._count(name, values, count)
        for name, histogram in other.times.items():
            self.times[name].add(histogram)


class MetricsCollector(Collector):
    """The metrics of all processes as the client library writes them."""

    def __init__(self, parts: Sequence[Metrics], gauges: Sequence[MetricGauge]) -> None:
        self._sum, self._gauges = Metrics(), gauges
        for part in parts:
            self._sum.add(part)

    def collect(self) -> Iterator[Metric]:
        for name, (labels, about) in LABELLED.items():
            family = CounterMetricFamily(f"slipstream:{name}", about, labels=labels)
            for values, count in self._sum.labelled[name].items():
                family.add_metric(values, count)
            yield family
        for name, about in COUNTERS.items():
            yield CounterMetricFamily(f"slipstream:{name}", about, self._sum.counts[name])
        limits = [*(str(float(limit)) for limit in SECONDS), "+Inf"]
        for name, about in TIMES.items():
            histogram = self._sum.times[name]
            buckets = list(zip(limits, accumulate(histogram.counts), strict=True))
            yield HistogramMetricFamily(f"slipstream:{name}", about, buckets, histogram.sum)
        for gauge in self._gauges:
            yield GaugeMetricFamily(f"slipstream:{gauge.name}", gauge.about, gauge.value)


def write_metrics(parts: Sequence[Metrics], gauges: Sequence[MetricGauge]) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(parts, gauges))
    return generate_latest(registry)


class RequestTimer:
    """Times of one sample."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._began, self._last = metrics, time.perf_counter(), 0.0
        self._between = metrics.times["time_between_chunks_seconds"]

    def chunk(self, chunk: Chunk) -> None:
        if not chunk.token_ids:
            return
        now = time.perf_counter()
        if self._last:
            self._between.observe(now - self._last)
        else:
            self._metrics.times["time_to_first_token_seconds"].observe(now - self._began)
            note(first_token_seconds=round(now - self._began, 4))
        self._last = now

    def done(self, sample: Completion, prompt: bool) -> None:
        self._metrics.finished(sample, time.perf_counter() - self._began, prompt)
        note(prompt_tokens=sample.prompt_tokens if prompt else 0, completion_tokens=sample.completion_tokens)
        note(cycles=sample.stats.cycles, drafted=sum(sample.stats.drafted), accepted=sum(sample.stats.accepted))
        note(queue_seconds=round(sample.queue_seconds, 4))
        if sample.stats.failures:
            note(drafter_failed=True)
        note(rule=sample.rule, lossless=sample.lossless, finish_reason=sample.finish_reason)
