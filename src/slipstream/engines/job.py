"""One request from submission to its last chunk: its row, its text, its counts, and who waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property

from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Origin, Request, Row
from slipstream.engines.base import Chunk, Completion, Guarantee, Logprob, RequestHandle, SpeculationStats
from slipstream.engines.completion import DraftedTree
from slipstream.engines.stops import StopStrings
from slipstream.models.text.detokenizer import Detokenizer


@dataclass(frozen=True)
class DecodingPlan:
    """How a job is decoded: the names of its drafter and rule, a fixed depth or None for the policy's choice, and how
    its drafts branch, if they do."""

    drafter: str
    rule: str
    depth: int | None
    shape: Shape | None = None

    @cached_property
    def budget(self) -> Budget:
        """Of every cycle, where the policy has no say."""
        return Budget(self.depth or 0, shape=self.shape)


class Job(RequestHandle):
    def __init__(
        self,
        request: Request,
        plan: DecodingPlan,
        decoder: Detokenizer | None = None,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        guarantee: Guarantee | None = None,
        prompt_logprobs: int | None = None,
        tenant: str = "",
    ) -> None:
        self.row, self.plan, self.top, self.prompt_top = Row(request), plan, logprobs, prompt_logprobs
        self.prompt_logprobs: list[Logprob | None] | None = None if prompt_logprobs is None else [None]
        self.guarantee = guarantee or Guarantee(plan.rule)
        self.stats, self.tenant = SpeculationStats(), tenant
        self.submitted, self.queue_seconds = time.perf_counter(), 0.0
        self.budget = Budget(0)  # of the coming cycle
        self.prefilled = 0
        self.seated = False  # the model holds its row
        self.rides = False  # its cycles can run on the device as a whole
        self.cancelled = False
        self.error: str | None = None
        self._decoder, self._stops = decoder, StopStrings(stop)
        self._chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        self._over = threading.Event()
        self._seen: list[Chunk] = []
        self._ready: Callable[[], None] | None = None  # called after each chunk
        self._begun = False  # whether a chunk is out

    def admit(self) -> None:
        """Its row begins: it waits no longer."""
        self.queue_seconds = time.perf_counter() - self.submitted

    def take(
        self,
        tokens: Sequence[int],
        origins: Sequence[Origin],
        logprobs: Sequence[Logprob],
        draft: DraftedTree | None = None,
    ) -> Chunk:
        """Read newly committed tokens one by one, as plain decoding would; a stop string takes back the rest."""
        pieces = self._read(tokens)
        if (kept := len(pieces)) < len(tokens):
            tokens, origins, logprobs = tokens[:kept], origins[:kept], logprobs[:kept]
        text = "".join(pieces) + (self._rest() if self.row.finish_reason and not self._stops.hit else "")
        reason = self.row.finish_reason
        return Chunk(text, tuple(tokens), tuple(origins), tuple(logprobs), reason, None, tuple(pieces), draft=draft)

    def _read(self, tokens: Sequence[int]) -> list[str]:
        """The text that becomes final with each of them; of fewer where it stops."""
        if self._decoder is None or not self._stops:
            return [self._decoder.push((token,)) if self._decoder else "" for token in tokens]
        pieces: list[str] = []
        for token in tokens:
            pieces.append(self._stops.feed(self._decoder.push((token,))))
            if self._stops.hit:
                self._take_back(len(tokens) - len(pieces))
                break
        return pieces

    def _rest(self) -> str:
        tail = self._stops.feed(self._decoder.flush()) if self._decoder else ""
        return tail if self._stops.hit else tail + self._stops.flush()

    def _take_back(self, count: int) -> None:
        if count:
            del self.row.tokens[-count:], self.row.origins[-count:]
        self.row.finish_reason = "stop"

    def end(self, reason: str, error: str | None = None) -> None:
        """Finish outside a cycle: cancelled, failed, or nothing to do. Never raises: somebody waits for the last chunk.
        A job that has its last chunk already is left as it is."""
        if self._over.is_set():
            return
        self.row.finish_reason, self.error = reason, error
        try:
            text = self._rest()
        except Exception:
            text = ""  # the text that was held back is lost, and nothing else
        self.put(Chunk(text, (), (), (), reason, error))

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong in here ends this job alone."""
        try:
            yield
        except Exception as error:
            self.end("error", str(error))

    def put(self, chunk: Chunk) -> None:
        if not self._begun and self.prompt_logprobs and not self.unscored:
            chunk = replace(chunk, prompt_logprobs=tuple(self.prompt_logprobs))
        self._begun = True
        self._chunks.put(chunk)
        if chunk.finish_reason is not None:
            self._over.set()
        if self._ready is not None:
            self._ready()

    def notify(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        if not self._chunks.empty():
            ready()

    def poll(self) -> list[Chunk]:
        new: list[Chunk] = []
        with suppress(queue.Empty):
            while True:
                new.append(self._chunks.get_nowait())
        self._seen += new
        return new

    @property
    def way(self) -> tuple[str, str]:
        """Its drafter and its rule: rows that have both in common draft and are judged together."""
        return self.plan.drafter, self.plan.rule

    @property
    def unread(self) -> int:
        """Tokens of the prompt that are still to be read; 0 once the row decodes."""
        return 0 if self.stats.cycles else max(0, len(self.row.request.prompt) - self.prefilled)

    @property
    def scored(self) -> int:
        """Tokens of the prompt whose log-probabilities are known."""
        return len(self.prompt_logprobs or ())

    @property
    def unscored(self) -> int:
        """Tokens of the prompt whose log-probabilities are wanted and not known yet."""
        return 0 if self.prompt_logprobs is None else len(self.row.request.prompt) - self.scored

    @property
    def stops(self) -> bool:
        """Whether what it says may end it."""
        return bool(self._stops)

    @property
    def done(self) -> bool:
        return self.row.finish_reason is not None

    def cancel(self) -> None:
        self.cancelled = True

    def __iter__(self) -> Iterator[Chunk]:
        while not self._seen or self._seen[-1].finish_reason is None:
            self._seen.append(self._chunks.get())
            yield self._seen[-1]

    def result(self) -> Completion:
        self._over.wait()  # woken once: who wakes for every chunk takes the interpreter from the worker
        for _ in self:
            pass
        seen = self._seen
        return Completion(
            prompt_tokens=len(self.row.request.prompt),
            text="".join(chunk.text for chunk in seen),
            token_ids=self.row.output,
            origins=self.row.origins,
            logprobs=[entry for chunk in seen for entry in chunk.logprobs],
            finish_reason=seen[-1].finish_reason or "",
            error=self.error,
            stats=self.stats,
            guarantee=self.guarantee,
            queue_seconds=self.queue_seconds,
            prompt_logprobs=None if self.unscored else self.prompt_logprobs,
        )
