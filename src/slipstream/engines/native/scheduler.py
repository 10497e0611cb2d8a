"""The scheduler: first come, first served, within the limits of rows and memory. Where requests of several tenants
wait, the next row goes to the one that has the fewest.

A row has places of the KV cache for its text and some more, and gets further ones as it grows. A request is admitted if
the places of all rows are within the memory budget. When rows have outgrown it, the one that came last gives its places
back and waits until there is room again; then its text is read again. The model has the same budget, and moves rows
together before it would exceed it. Closed rows that are retained for prefix reuse give way to those in use.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.checks import integer
from slipstream.engines.job import Job
from slipstream.models.cache.tensors import row_places


@dataclass(frozen=True)
class Limits:
    """The limits of an engine."""

    rows: int | None = None  # requests that decode at the same time; None: 16 on a CPU, 256 on a GPU
    tokens: int | None = None  # places of the KV cache, all rows together; None: 2^17 on a CPU, and as many as fit 65 %
    # of the memory that is free on a GPU once the model is loaded
    prefill: int | None = None  # prompt tokens per step, all rows together; None: a default for the device
    retained: int = 1 << 15  # tokens of ended requests that others with a common prefix reuse; 0: no reuse
    retained_bytes: int | None = None  # of their bytes; None: 512 MB or 5 % of memory, 10 % of a GPU's free

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            if given is not None or name == "retained":
                object.__setattr__(self, name, integer(name, given))
        for name, value in (("rows", self.rows), ("tokens", self.tokens), ("prefill", self.prefill)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        for name, value in (("retained", self.retained), ("retained_bytes", self.retained_bytes)):
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 (no reuse) or more")


@dataclass(frozen=True)
class DeviceLimits:
    """What suits a device where `Limits` says nothing; the defaults are a CPU's."""

    rows: int = 16
    tokens: int = 1 << 17
    prefill: int = 512


CPU = DeviceLimits()


class Scheduler:
    """The queue of waiting jobs and the list of running ones."""

    def __init__(self, limits: Limits, context: int, device: DeviceLimits = CPU) -> None:
        self.context = context
        self.rows, self.tokens = limits.rows or device.rows, limits.tokens or device.tokens
        self._most_tokens = self.tokens  # the budget; `postpone` lowers it for a while
        self.chunk = limits.prefill or device.prefill  # prompt tokens of a step
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.preemptions = 0  # so far

    @property
    def expected_rows(self) -> int:
        """The number of running and waiting requests, limited to the maximum number of rows."""
        return min(len(self.running) + len(self.waiting), self.rows)

    def check(self, job: Job) -> None:
        """Raise ValueError for a job that could never be admitted."""
        need = job.row.length + job.row.room(self.context)
        if need > self._most_tokens:
            have = self._most_tokens
            raise ValueError(f"prompt and max_tokens need {need} places of the cache; the memory budget holds {have}")

    def places(self, job: Job) -> int:
        """Places that a row has, or gets with its next token."""
        return row_places(job.row, self.context)

    @property
    def taken(self) -> int:
        """Places of all running rows."""
        return sum(map(self.places, list(self.running)))  # the worker's thread changes it

    def admits(self) -> bool:
        """Whether a job of the queue can have a row."""
        if not self.waiting or len(self.running) >= self.rows:
            return False
        if not self.running:
            return True
        job = self._next(Counter(job.tenant for job in self.running), Counter(job.tenant for job in self.waiting))
        return self.taken + self.places(job) <= self.tokens

    @property
    def use(self) -> float:
        """Share of the cache's places that the rows take."""
        return min(1.0, self.taken / self.tokens)

    def admit(self) -> list[Job]:
        """Admit waiting jobs while they fit. Returns the admitted jobs."""
        new: list[Job] = []
        if not self.waiting:
            return new
        self.waiting = deque(job for job in self.waiting if not job.done)
        if not self.running:
            self.tokens = self._most_tokens
        rows, waiting = Counter(job.tenant for job in self.running), Counter(job.tenant for job in self.waiting)
        taken = self.taken
        while self.waiting and len(self.running) < self.rows:
            job = self._next(rows, waiting)
            taken += self.places(job)
            if taken > self.tokens and self.running:
                break
            self.waiting.remove(job)
            job.admit()
            new.append(job)
            self.running.append(job)
            rows[job.tenant] += 1
            waiting[job.tenant] -= 1
        return new

    def preempt(self) -> list[Job]:
        """Let the rows that came last wait again, while the rows together have outgrown the budget. Returns them."""
        preempted: list[Job] = []
        while len(self.running) > 1 and self.taken > self.tokens:
            job = self.running.pop()
            self.waiting.appendleft(job)
            preempted.append(job)
        self.preemptions += len(preempted)
        return preempted

    def postpone(self, jobs: Sequence[Job]) -> None:
        """Let running jobs wait again. Until the others have ended the budget is what they take: there is no memory for
        more."""
        self.running = [job for job in self.running if job not in jobs]
        self.waiting.extendleft(reversed(jobs))
        self.tokens = self.taken
        for job in jobs:
            if job.seated:
                job.preempt()
                self.preemptions += 1

    def _next(self, rows: Counter[str], waiting: Counter[str]) -> Job:
        """The first job that waits, of the tenant with the fewest rows. The rows and the waiting jobs of each tenant
        are counted already."""
        if len(waiting) == 1:
            return self.waiting[0]
        fewest = min(rows[tenant] for tenant, count in waiting.items() if count)
        return next(job for job in self.waiting if rows[job.tenant] == fewest)

    def leave(self) -> list[Job]:
        """Remove the jobs that are done. Returns those that were running."""
        done = [job for job in self.running if job.row.finish_reason is not None]
        if not done and not self.waiting:
            return done
        self.running = [job for job in self.running if not job.done]
        self.waiting = deque(job for job in self.waiting if not job.done)
        return done
