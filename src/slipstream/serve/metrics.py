"""Metrics for Prometheus, under the names that dashboards for vLLM know, with the prefix `slipstream:`."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.logs import note

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Seconds(Collector):
    """A histogram of seconds. One observation per chunk must be cheap, and the client library's takes ten times as
    long. Only the event loop's thread observes and collects."""

    def __init__(self, name: str, about: str) -> None:
        self._name, self._about = name, about
        self._counts, self._sum = [0] * (len(SECONDS) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        limits = [*(str(float(limit)) for limit in SECONDS), "+Inf"]
        buckets = list(zip(limits, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._about, buckets, self._sum)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("request_success", "Finished requests by finish reason.", ["finished_reason"])
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._generated = self._counter("generation_tokens", "Tokens generated for finished requests.")
        self._drafts = self._counter("spec_decode_num_drafts", "Cycles in which tokens were drafted.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        per_position = "spec_decode_num_accepted_tokens_per_pos"
        self._positions = self._counter(per_position, "Accepted tokens by position in the draft.", ["position"])
        failures = "Requests whose drafter failed; they went on without it."
        self._failures = self._counter("spec_decode_num_drafter_failures", failures)
        self._rejected = self._counter("requests_rejected", "Requests refused because too many were under way.")
        self._first = self._histogram("time_to_first_token_seconds", "From a request to its first token.")
        self._between = self._histogram("time_between_chunks_seconds", "Between the chunks of one request.")
        self._queue = self._histogram("request_queue_time_seconds", "That a request waited for a row.")
        self._whole = self._histogram("e2e_request_latency_seconds", "From a request to its last token.")

    def _counter(self, name: str, about: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(f"slipstream:{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str) -> Seconds:
        histogram = Seconds(f"slipstream:{name}", about)
        self._registry.register(histogram)
        return histogram

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A gauge that is read when somebody asks."""
        Gauge(f"slipstream:{name}", about, registry=self._registry).set_function(value)

    def timer(self) -> RequestTimer:
        return RequestTimer(self)

    def reject(self) -> None:
        self._rejected.inc()

    def finished(self, sample: Completion, seconds: float, prompt: bool) -> None:
        """A sample is done; `prompt`: it is the first of its prompt, whose tokens count once."""
        self._requests.labels(sample.finish_reason).inc()
        self._whole.observe(seconds)
        self._prompt.inc(sample.prompt_tokens if prompt else 0)
        self._generated.inc(sample.completion_tokens)
        self._drafts.inc(sample.stats.drafted[0] if sample.stats.drafted else 0)
        self._drafted.inc(sum(sample.stats.drafted))
        self._accepted.inc(sum(sample.stats.accepted))
        self._failures.inc(sample.stats.failures)
        self._queue.observe(sample.queue_seconds)
        for position, count in enumerate(sample.stats.accepted):
            self._positions.labels(str(position)).inc(count)

    def write(self) -> bytes:
        return generate_latest(self._registry)


class RequestTimer:
    """Times of one sample."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._began, self._last = metrics, time.perf_counter(), 0.0

    def chunk(self, chunk: Chunk) -> None:
        if not chunk.token_ids:
            return
        now = time.perf_counter()
        if self._last:
            self._metrics._between.observe(now - self._last)
        else:
            self._metrics._first.observe(now - self._began)
            note(first_token_seconds=round(now - self._began, 4))
        self._last = now

    def done(self, sample: Completion, prompt: bool) -> None:
        self._metrics.finished(sample, time.perf_counter() - self._began, prompt)
        note(prompt_tokens=sample.prompt_tokens if prompt else 0, completion_tokens=sample.completion_tokens)
        note(cycles=sample.stats.cycles, drafted=sum(sample.stats.drafted), accepted=sum(sample.stats.accepted))
        note(queue_seconds=round(sample.queue_seconds, 4))
        if sample.stats.failures:
            note(drafter_failed=True)
        note(rule=sample.rule, finish_reason=sample.finish_reason)
