"""The scheduler: first come, first served, within the limits of rows and memory. Where requests of several tenants
wait, the next row goes to the one that has the fewest.

The cache is a rectangle of rows times places, both growing by doubling, so that is what a request is charged for: it is
admitted when the rectangle that holds it and everyone already there is within the budget. The model is told of the
budget too, and lays its rows together before it passes it. What requests leave behind for others that begin alike has a
budget of its own, and gives way by itself.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from slipstream.core.checks import integer
from slipstream.core.device import next_power_of_two
from slipstream.engines.job import Job


@dataclass(frozen=True)
class Limits:
    rows: int = 16
    tokens: int = 1 << 17  # places of the cache in all, rows times the longest
    prefill: int | None = None  # prompt tokens read in one step, all rows together; None: what suits the device
    retained: int = 1 << 15  # tokens kept besides, for prompts that begin alike; 0 computes everything anew
    retained_bytes: int | None = None  # the most these may take; None: 512 MB or 5 % of memory, 10 % of a GPU's free

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


CHUNK, LAUNCHED = 512, 2048  # prompt tokens of a step; on a GPU, where launching kernels is what takes long


class Scheduler:
    def __init__(self, limits: Limits, context: int, launched: bool = False) -> None:
        self.limits, self.context = limits, context
        self.chunk = limits.prefill or (LAUNCHED if launched else CHUNK)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []

    @property
    def crowd(self) -> int:
        """Rows there are or will soon be."""
        return min(len(self.running) + len(self.waiting), self.limits.rows)

    def check(self, job: Job) -> None:
        """Refuse what could never be admitted."""
        if self.footprint([job]) > self.limits.tokens:
            need, have = self.places(job), self.limits.tokens
            raise ValueError(f"prompt and max_tokens need {need} places of the cache; the memory budget holds {have}")

    def places(self, job: Job) -> int:
        request = job.row.request
        return min(len(request.prompt) + request.max_tokens, self.context)

    def footprint(self, jobs: list[Job]) -> int:
        """Places of the rectangle that holds these jobs."""
        return next_power_of_two(len(jobs)) * next_power_of_two(max(map(self.places, jobs)))

    @property
    def use(self) -> float:
        """Share of the cache's places that the rows take."""
        running = list(self.running)  # the worker's thread changes it
        return self.footprint(running) / self.limits.tokens if running else 0.0

    def admit(self) -> list[Job]:
        """Move jobs from the queue to the rows while they fit; the new ones."""
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
        """Take out the jobs that are done; those that held a row."""
        done = [job for job in self.running if job.done]
        if not done and not self.waiting:
            return done
        self.running = [job for job in self.running if not job.done]
        self.waiting = deque(job for job in self.waiting if not job.done)
        return done
