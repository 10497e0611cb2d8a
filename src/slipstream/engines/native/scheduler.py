"""The scheduler: first come, first served, within the limits of rows and memory. Where requests of several tenants
wait, the next row goes to the one that has the fewest.

The KV cache is a rectangle of rows times places. Both grow by doubling. A request is admitted if the rectangle that
holds all requests is within the memory budget. The model has the same budget, and compacts its rows before it would
exceed it. The prefix store has a separate budget and evicts entries by itself.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from slipstream.core.checks import integer
from slipstream.core.device import next_power_of_two
from slipstream.engines.job import Job


@dataclass(frozen=True)
class Limits:
    """The limits of an engine."""

    rows: int = 16  # requests that decode at the same time
    tokens: int = 1 << 17  # places of the KV cache: rows times the longest row
    prefill: int | None = None  # prompt tokens per step, all rows together; None: a default for the device
    retained: int = 1 << 15  # tokens in the prefix store, which prompts with a common prefix reuse; 0: no reuse
    retained_bytes: int | None = None  # bytes of the prefix store; None: 512 MB or 5 % of memory, 10 % of a GPU's free

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            if given is not None or name not in ("prefill", "retained_bytes"):
                object.__setattr__(self, name, integer(name, given))
        for name, value in (("rows", self.rows), ("tokens", self.tokens), ("prefill", self.prefill)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        for name, value in (("retained", self.retained), ("retained_bytes", self.retained_bytes)):
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 (no reuse) or more")


CHUNK, LAUNCHED = 512, 2048  # prompt tokens per step; on a GPU, where launching kernels takes most of the time


class Scheduler:
    """The queue of waiting jobs and the list of running ones."""

    def __init__(self, limits: Limits, context: int, launched: bool = False) -> None:
        self.limits, self.context = limits, context
        self.chunk = limits.prefill or (LAUNCHED if launched else CHUNK)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []

    @property
    def crowd(self) -> int:
        """The number of running and waiting requests, limited to the maximum number of rows."""
        return min(len(self.running) + len(self.waiting), self.limits.rows)

    def check(self, job: Job) -> None:
        """Raise ValueError for a job that could never be admitted."""
        if self.footprint([job]) > self.limits.tokens:
            need, have = self.places(job), self.limits.tokens
            raise ValueError(f"prompt and max_tokens need {need} places of the cache; the memory budget holds {have}")

    def places(self, job: Job) -> int:
        request = job.row.request
        return min(len(request.prompt) + request.max_tokens, self.context)

    def footprint(self, jobs: list[Job]) -> int:
        """Places of the cache rectangle that holds these jobs."""
        return next_power_of_two(len(jobs)) * next_power_of_two(max(map(self.places, jobs)))

    @property
    def use(self) -> float:
        """Share of the cache's places that the rows take."""
        running = list(self.running)  # the worker's thread changes it
        return self.footprint(running) / self.limits.tokens if running else 0.0

    def admit(self) -> list[Job]:
        """Admit waiting jobs while they fit. Returns the admitted jobs."""
        new: list[Job] = []
        while self.waiting and len(self.running) < self.limits.rows:
            job = self._next()
            if not job.done and self.footprint([*self.running, job]) > self.limits.tokens:
                break
            self.waiting.remove(job)
            if job.done:
                continue
            job.admit()
            new.append(job)
            self.running.append(job)
        return new

    def _next(self) -> Job:
        """The first job that waits, of the tenant with the fewest rows."""
        rows = Counter(job.tenant for job in self.running)
        return min(self.waiting, key=lambda job: rows[job.tenant])

    def leave(self) -> list[Job]:
        """Remove the jobs that are done. Returns those that were running."""
        done = [job for job in self.running if job.done]
        if not done and not self.waiting:
            return done
        self.running = [job for job in self.running if not job.done]
        self.waiting = deque(job for job in self.waiting if not job.done)
        return done
