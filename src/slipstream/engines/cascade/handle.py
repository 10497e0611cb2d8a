"""A request on its way through a route: the small model's answer, the decision, and perhaps the large model's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.core.sampling import Sampling
from slipstream.engines.base import Chunk, Completion, GenerationOptions, Prompt, RequestHandle
from slipstream.engines.completion import RouteOutcome

if TYPE_CHECKING:
    from slipstream.engines.cascade.request import RouteEngine


@dataclass(frozen=True)
class RoutedRequest:
    """A request and the engine that routes it."""

    prompt: Prompt
    sampling: Sampling
    options: GenerationOptions
    engine: RouteEngine

    def sample_sampling(self, sample: int) -> Sampling:
        """The sampling of one of its samples. Each is a request of its own, so it gets a seed of its own."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=(seed + sample) % 2**63)


class RouteHandle(RequestHandle):
    """One sample. Its own thread waits for the models.

    The small model's text is published when it is kept, the large model's as it is written."""

    def __init__(self, request: RoutedRequest, sample: int) -> None:
        self._request, self._sample = request, sample
        self._chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        self._seen: list[Chunk] = []
        self._ready: Callable[[], None] | None = None
        self._running: list[RequestHandle] = []
        self._cancelled = False
        self._whole = False  # whether the caller waits for the completion: then no chunk wakes a thread
        self._done: Completion | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="slipstream-route")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._done = self._routed()
        except BaseException as error:  # raised again by `result`
            self._error = error
            self._publish(Chunk("", (), (), (), "error", str(error)))

    def _routed(self) -> Completion:
        engine = self._request.engine
        small, chunks, score = None, list[Chunk](), None
        if engine.options.threshold < 1:
            small, chunks, score = self._small()
        keep = small is not None and (score is None or score > engine.options.threshold or small.error is not None)
        if small is not None and (keep or self._cancelled):
            engine.counts.add(small, None)
            for chunk in chunks:
                self._publish(self._stripped(chunk))
            logprobs = small.logprobs if self._request.options.logprobs is not None else []
            return self._labelled(replace(small, logprobs=logprobs), RouteOutcome("small", score))
        with engine.large.use() as model:
            handle = engine.answer_large(self._request, model, self._sample, small)
            self._track(handle)
            whole = self._whole
            for chunk in () if whole else handle:
                self._publish(chunk)
            large = handle.result()
            if whole:
                self._publish(_as_chunk(large))
        engine.counts.add(small, large)
        return self._labelled(large, RouteOutcome("large", score))

    def _small(self) -> tuple[Completion, list[Chunk], float | None]:
        """The small model's answer, its chunks, and its score."""
        engine = self._request.engine
        with engine.small.use() as model:
            own, *others = engine.answer_small(self._request, model, self._sample)
            self._track(own, *others)
            chunks = [] if self._whole else list(own)
            answers = [handle.result() for handle in (own, *others)]
            return answers[0], chunks or [_as_chunk(answers[0])], engine.rate(self._request, model, answers)

    def _labelled(self, completion: Completion, outcome: RouteOutcome) -> Completion:
        return replace(completion, guarantee=self._request.engine.guarantee, route=outcome)

    def _stripped(self, chunk: Chunk) -> Chunk:
        """Without the log-probabilities that only the score asked for."""
        return chunk if self._request.options.logprobs is not None else replace(chunk, logprobs=())

    def _track(self, *handles: RequestHandle) -> None:
        self._running = list(handles)
        if self._cancelled:
            self.cancel()

    def _publish(self, chunk: Chunk) -> None:
        self._chunks.put(chunk)
        if self._ready is not None:
            self._ready()

    def __iter__(self) -> Iterator[Chunk]:
        while not self._seen or self._seen[-1].finish_reason is None:
            self._seen.append(self._chunks.get())
            yield self._seen[-1]

    def result(self) -> Completion:
        self._whole = not self._seen and self._ready is None
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._done is not None, "a routed request ends with a completion or an error"
        return self._done

    def wait(self) -> None:
        self._thread.join()

    def cancel(self) -> None:
        self._cancelled = True
        for handle in self._running:
            handle.cancel()

    def notify(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        if not self._chunks.empty():
            ready()

    def poll(self) -> list[Chunk]:
        new = list[Chunk]()
        while not self._chunks.empty():
            new.append(self._chunks.get_nowait())
        self._seen += new
        return new


def _as_chunk(completion: Completion) -> Chunk:
    """A completion as its only chunk."""
    ids, origins, logprobs = completion.token_ids, completion.origins, completion.logprobs
    return Chunk(
        completion.text, tuple(ids), tuple(origins), tuple(logprobs), completion.finish_reason, completion.error
    )
