"""What an engine returns: chunks while a request runs, a completion at the end, and the counts of drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream.core.types import Origin

DEAD_END = "the grammar and the tokens that are allowed leave nothing to go on with"  # the error of such a request


@dataclass(frozen=True)
class Logprob:
    """The log-probability of a token before sampling parameters, and those of the most probable tokens."""

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...]  # token ids and their log-probabilities


@dataclass(frozen=True)
class DraftedTree:
    """The draft of one cycle for one request: a token and a parent (-1 for none) for each node, siblings in the order
    in which they were drafted, and the accepted nodes."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """The output of one cycle for one request, or of several whose chunks nobody asked for while they ran.
    `finish_reason` is set on the last chunk."""

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: str | None = None  # "stop", "length", "cancelled" or "error"
    error: str | None = None
    pieces: tuple[str, ...] = ()  # the text that each token added; `text` may end with more
    prompt_logprobs: tuple[Logprob | None, ...] = ()  # on the first chunk, where asked for
    draft: DraftedTree | None = None  # of its cycle, where logprobs are asked for and there was one


@dataclass
class SpeculationStats:
    """Counts of drafted and accepted tokens, of one request or of several."""

    cycles: int = 0
    emitted: int = 0
    drafted: list[int] = field(default_factory=list)  # by position
    accepted: list[int] = field(default_factory=list)
    failures: int = 0  # requests whose drafter failed, after which they were decoded without it

    def add(self, drafted: int, accepted: int, emitted: int, cycles: int = 1) -> None:
        """Count a cycle that drafted a chain, or several alike; `emitted` are the tokens of all of them."""
        self.cycles += cycles
        self.emitted += emitted
        if not drafted:
            return
        for counts, count in ((self.drafted, drafted), (self.accepted, accepted)):
            if len(counts) < count:
                counts += [0] * (count - len(counts))
            for i in range(count):
                counts[i] += cycles

    def book(self, drafted: Sequence[int], accepted: int, emitted: int) -> None:
        """Count a cycle that drafted a tree; `drafted` is the number of tokens at each position."""
        self.cycles += 1
        self.emitted += emitted
        if not drafted:
            return
        for counts, new in ((self.drafted, drafted), (self.accepted, [1] * accepted)):
            counts += [0] * (len(new) - len(counts))
            for i, count in enumerate(new):
                counts[i] += count

    @property
    def tau(self) -> float:
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def acceptance(self) -> list[float]:
        """Share of drafted tokens that were accepted, by position."""
        kept = [*self.accepted, *[0] * len(self.drafted)]
        return [a / d for a, d in zip(kept, self.drafted, strict=False)]

    @property
    def wasted(self) -> int:
        return sum(self.drafted) - sum(self.accepted)

    def merge(self, other: SpeculationStats) -> None:
        self.cycles += other.cycles
        self.failures += other.failures
        self.emitted += other.emitted
        for counts, more in ((self.drafted, other.drafted), (self.accepted, other.accepted)):
            counts += [0] * (len(more) - len(counts))
            for i, count in enumerate(more):
                counts[i] += count


@dataclass(frozen=True)
class Guarantee:
    """The guarantees of an output."""

    rule: str  # the name of the verification rule; "its own" for the rule of a peer
    lossless: bool | None = None  # whether the rule keeps the target's distribution; None: not known (a peer's rule)
    repeatable: Literal["bit for bit", "up to ties"] | None = None  # the same request gives the same tokens again


@dataclass(frozen=True)
class RouteOutcome:
    """Which model of a route wrote a completion, and the score of the small model's answer."""

    model: Literal["small", "large"]
    score: float | None = None  # between 0 and 1; None where the route needs none


@dataclass(frozen=True)
class Completion:
    """One finished sample of one request."""

    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length", "cancelled" or "error"
    logprobs: list[Logprob]
    prompt_tokens: int
    origins: list[Origin]  # of each token
    stats: SpeculationStats
    guarantee: Guarantee
    error: str | None = None
    prompt_logprobs: list[Logprob | None] | None = None  # where asked for; None for the first token
    queue_seconds: float = 0.0  # that the request waited for a row, where the engine has a queue of its own
    route: RouteOutcome | None = None  # of a request that went through a route between two models

    @property
    def completion_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def rule(self) -> str:
        return self.guarantee.rule

    @property
    def lossless(self) -> bool | None:
        return self.guarantee.lossless

    @property
    def repeatable(self) -> str | None:
        """Whether the same request gives the same tokens again: "bit for bit", "up to ties" (except where two tokens
        are equally good within rounding), or None (not guaranteed)."""
        return self.guarantee.repeatable

    @property
    def tau(self) -> float:
        return self.stats.tau

    @property
    def acceptance(self) -> list[float]:
        return self.stats.acceptance
