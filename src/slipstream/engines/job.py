"""One request from submission to its last chunk: its row, its text, its counts and its queue of chunks.

Text is decoded by the thread that reads the chunks, so that the engine's thread need not. Only a request with stop
strings is decoded by the engine's thread, since its text may end it.

Chunks are made from the time on that somebody reads them. Whoever waits for the result alone, as in `generate`, needs
none: its tokens are those of the row. The first chunk of a late reader has all tokens so far.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from slipstream.core.array_types import Tensor
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Origin, Request, Row
from slipstream.engines.base import Chunk, Completion, Guarantee, Logprob, RequestHandle, SpeculationStats
from slipstream.engines.completion import DraftedTree
from slipstream.engines.stops import StopStrings
from slipstream.models.text.detokenizer import Detokenizer


@dataclass(frozen=True)
class DecodingPlan:
    """How a job is decoded: the names of its drafter and rule, its depth (None: chosen by the policy), and the shape of
    its trees (None: chains)."""

    drafter: str
    rule: str
    depth: int | None
    shape: Shape | None = None

    @cached_property
    def budget(self) -> Budget:
        """The budget of every cycle, if the depth is fixed."""
        return Budget(self.depth or 0, shape=self.shape)


ChainCounts = tuple[int, int, int]  # of a cycle that drafted a chain or nothing: tokens drafted, accepted and emitted


class Emission(NamedTuple):
    """The output of one cycle whose text is not decoded yet."""

    token_ids: Sequence[int]
    origins: Sequence[Origin]
    logprobs: Sequence[Logprob] = ()
    finish_reason: str | None = None
    error: str | None = None
    prompt_logprobs: tuple[Logprob | None, ...] = ()
    draft: DraftedTree | None = None


_emission = tuple.__new__  # hundreds of them in a cycle, without the call of their own constructor


class Job(RequestHandle):
    """One sample of a request. The engine fills it, and the caller reads its chunks."""

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
        self.row.logprobs = logprobs
        self.prompt_logprobs: list[Logprob | None] | None = None if prompt_logprobs is None else [None]
        self.guarantee = guarantee or Guarantee(plan.rule)
        self._stats, self.tenant = SpeculationStats(), tenant
        self._counted: deque[ChainCounts] = deque()  # cycles that are not in `_stats` yet
        self.counting = threading.RLock()  # held while `stats` change
        self.submitted, self.queue_seconds = time.perf_counter(), 0.0
        self.state_layer: int | None = None  # the layer whose outputs at the prompt's tokens are wanted
        self.states: list[Tensor] = []  # those outputs, chunk by chunk
        self.budget = Budget(0)  # of the next cycle
        self.prefilled = 0  # tokens that were read before it decodes
        self.to_read = len(request.prompt)  # tokens that it has to read before it decodes
        self._cycles_before = 0  # that it had decoded when it was preempted
        self.seated = False  # whether its row is open in the model
        self.capturable = False  # whether its cycles can run as captured cycles
        self.cancelled = False
        self.error: str | None = None
        self._decoder, self._stops = decoder, StopStrings(stop)
        self.stops = bool(stop)  # whether what it says may end it
        self._chunks: queue.SimpleQueue[Chunk | Emission] = queue.SimpleQueue()
        self._over = threading.Event()
        self._seen: list[Chunk] = []
        self._ready: Callable[[], None] | None = None  # called after each chunk
        self._begun = False  # whether a chunk was published
        self.streamed = bool(stop) or logprobs is not None or prompt_logprobs is not None  # whether chunks are made
        self._emitted = self._published = (
            0  # emitted tokens that `emit` was told of, and those that a chunk was made of
        )

    @property
    def stats(self) -> SpeculationStats:
        if self._counted:
            with self.counting:  # the engine's thread may go on adding to them
                alike = Counter([self._counted.popleft() for _ in range(len(self._counted))])
                for (drafted, accepted, emitted), cycles in alike.items():
                    self._stats.add(drafted, accepted, cycles * emitted, cycles)
        return self._stats

    @stats.setter
    def stats(self, stats: SpeculationStats) -> None:
        self._stats = stats

    def admit(self) -> None:
        """Its row begins: it waits no longer."""
        self.queue_seconds = time.perf_counter() - self.submitted

    def preempt(self) -> None:
        """Its row has lost its places in the cache, and waits again. All of its text is read again."""
        self.seated, self.prefilled, self.to_read = False, 0, self.row.length
        self._cycles_before = self.stats.cycles

    def take(
        self,
        tokens: Sequence[int],
        origins: Sequence[Origin],
        logprobs: Sequence[Logprob],
        draft: DraftedTree | None = None,
    ) -> Chunk:
        """The chunk of newly committed tokens. After a stop string, the remaining tokens are removed from the row."""
        pieces = self._read(tokens)
        if (kept := len(pieces)) < len(tokens):
            tokens, origins, logprobs = tokens[:kept], origins[:kept], logprobs[:kept]
        text = "".join(pieces) + (self._rest() if self.row.finish_reason and not self._stops.hit else "")
        reason = self.row.finish_reason
        return Chunk(text, tuple(tokens), tuple(origins), tuple(logprobs), reason, None, tuple(pieces), draft=draft)

    def _read(self, tokens: Sequence[int]) -> list[str]:
        """The text that each token adds; fewer texts than tokens if a stop string was found."""
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
        """Finish the job outside a cycle: cancelled, failed, or nothing to do.

        Never raises, because the caller waits for the last chunk. Has no effect if the last chunk was published."""
        if self._over.is_set():
            return
        self.row.finish_reason, self.error = reason, error
        if not self._stops:
            tokens, origins = self._unpublished()
            self._published = self._emitted
            self._send(Emission(tokens, origins, (), reason, error, self._first_scores()))
            return
        try:
            text = self._rest()
        except Exception:
            text = ""  # only text that was held back is lost
        self.put(Chunk(text, (), (), (), reason, error))

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """An exception in this block ends this job only."""
        try:
            yield
        except Exception as error:
            self.end("error", str(error))

    def put(self, chunk: Chunk) -> None:
        """Hand out a chunk that `take` made. Its text is decoded, so the result is made of chunks."""
        self.streamed = True
        if scored := self._first_scores():
            chunk = replace(chunk, prompt_logprobs=scored)
        self._send(chunk)

    def _first_scores(self) -> tuple[Logprob | None, ...]:
        """The log-probabilities of the prompt, for the first chunk."""
        return () if self._begun or not self.prompt_logprobs or self.unscored else tuple(self.prompt_logprobs)

    def emit(
        self,
        tokens: Sequence[int],
        origins: Sequence[Origin],
        logprobs: Sequence[Logprob] = (),
        draft: DraftedTree | None = None,
        counts: Sequence[ChainCounts] = (),
    ) -> None:
        """Hand out newly committed tokens of a request without stop strings. Whoever reads them decodes their text.
        `counts`: of the cycles, unless they were counted already. Hundreds of calls per cycle: `_send` is written out.
        """
        if counts:
            self._counted.extend(counts)
        before, finish = self._emitted, self.row.finish_reason
        self._emitted = before + len(tokens)
        if not self.streamed and finish is None:
            return
        if self._published < before:
            tokens, origins = self._unpublished()
        self._published, scored = self._emitted, () if self._begun else self._first_scores()
        self._begun = True
        self._chunks.put(_emission(Emission, (tokens, origins, logprobs, finish, None, scored, draft)))
        if self._ready is not None:
            self._ready()
        if finish is not None:
            self._over.set()

    def _unpublished(self) -> tuple[list[int], list[Origin]]:
        """The tokens that no chunk was made of yet, and their origins."""
        new, prompt = slice(self._published, self._emitted), len(self.row.request.prompt)
        return self.row.tokens[prompt + new.start : prompt + new.stop], self.row.origins[new]

    def _send(self, chunk: Chunk | Emission) -> None:
        self._begun = True
        self._chunks.put(chunk)
        if self._ready is not None:
            self._ready()
        if chunk.finish_reason is not None:
            self._over.set()

    def notify(self, ready: Callable[[], None]) -> None:
        self._ready, self.streamed = ready, True
        if not self._chunks.empty():
            ready()

    def poll(self) -> list[Chunk]:
        new = [self._decoded(item) for item in self.undecoded()]
        self._seen += new
        return new

    def undecoded(self) -> list[Chunk | Emission]:
        self.streamed = True
        items: list[Chunk | Emission] = []
        while not self._chunks.empty():  # nobody else takes chunks
            items.append(self._chunks.get_nowait())
        return items

    def outcome(self) -> tuple[SpeculationStats, Guarantee, float]:
        return self.stats, self.guarantee, self.queue_seconds

    @property
    def drafter_and_rule(self) -> tuple[str, str]:
        """Its drafter and its rule. Rows with the same pair draft and verify together."""
        return self.plan.drafter, self.plan.rule

    @property
    def unread(self) -> int:
        """Tokens that must be read before the row decodes and were not read yet; 0 when it decodes."""
        return 0 if self.stats.cycles > self._cycles_before else max(0, self.to_read - self.prefilled)

    @property
    def scored(self) -> int:
        """Tokens of the prompt whose log-probabilities are known."""
        return len(self.prompt_logprobs or ())

    @property
    def unscored(self) -> int:
        """Tokens of the prompt whose log-probabilities were requested and are not known yet."""
        return 0 if self.prompt_logprobs is None else len(self.row.request.prompt) - self.scored

    @property
    def done(self) -> bool:
        return self.row.finish_reason is not None

    def cancel(self) -> None:
        self.cancelled = True

    def __iter__(self) -> Iterator[Chunk]:
        self.streamed = True
        return self._read_chunks()

    def _read_chunks(self) -> Iterator[Chunk]:
        while not self._seen or self._seen[-1].finish_reason is None:
            self._seen.append(self._decoded(self._chunks.get()))
            yield self._seen[-1]

    def _decoded(self, item: Chunk | Emission, at_once: bool = False) -> Chunk:
        """A chunk with its text, decoded token by token or at once. Where it cannot be decoded the request ends."""
        if isinstance(item, Chunk):
            return item
        tokens, origins, logprobs, finish_reason, error, scored, draft = item
        try:
            pieces = (self._decoder.push(tokens) if self._decoder else "",) if at_once else tuple(self._read(tokens))
            text = "".join(pieces) + (self._rest() if finish_reason else "")
        except Exception as failure:
            self.cancel()
            pieces, text, finish_reason = (), "", "error"
            error = self.error = error or str(failure)
        return Chunk(text, tuple(tokens), tuple(origins), tuple(logprobs), finish_reason, error, pieces, scored, draft)

    def wait(self) -> None:
        self._over.wait()  # one wake-up; waking for every chunk would take the interpreter lock from the worker

    def result(self) -> Completion:
        self.wait()
        if not self._seen:
            self._read_all()
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

    def _read_all(self) -> None:
        """Decode the text of a finished request at once, where nobody has read a part of it.

        Where no chunks were made but the last, it is not looked at: it tells no more than the row does."""
        row = self.row
        if not self.streamed:
            self._chunks = queue.SimpleQueue()
            whole = Emission(row.output, row.origins, (), row.finish_reason, self.error)
            self._seen.append(self._decoded(whole, at_once=True))
            return
        items = self.undecoded()
        if not all(isinstance(item, Emission) for item in items):
            self._seen += map(self._decoded, items)
            return
        logprobs = [entry for item in items for entry in item.logprobs]
        first, last = items[0], items[-1]
        merged = Emission(row.output, row.origins, logprobs, last.finish_reason, last.error, first.prompt_logprobs)
        self._seen.append(self._decoded(merged, at_once=True))
