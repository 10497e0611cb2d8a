"""Chunked prefill: reads several prompts in pieces while other rows decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.core.interfaces import Model
from slipstream.engines.job import Job

PIECES = 4  # of a step's tokens, at most


class PromptReader:
    """So many tokens a step are read of all prompts together; `note` is told what went wrong with several at once."""

    def __init__(self, model: Model, limit: int, note: Callable[[str], None]) -> None:
        self._model, self._limit, self._note = model, limit, note

    def read(self, jobs: Sequence[Job]) -> list[Job]:
        """First come, first read; what is left of a prompt then rides in the score pass. The rows that are ready. One
        that is too long for what is left of a step is read in pieces, but none so small that it is not worth a pass."""
        left, ready = self._limit, []
        for job in jobs:
            if not job.unread:  # it decodes
                ready += [] if job.done else [job]
                continue
            if job.unread > left:
                before = job.unread
                with job.blamed():
                    self._some(job, left if PIECES * left >= self._limit else 0)
                left -= min(left, before - job.unread)
            if job.unread <= left and not job.done:
                left -= job.unread
                ready.append(job)
        return ready

    def _some(self, job: Job, limit: int) -> None:
        """Read ahead, or take over what another row has read; with no limit left, only the latter."""
        read = self._model.prefill([job.row], limit)[0]
        helpless = not read and limit == self._limit  # reads nothing ahead, so pieces are no use
        job.prefilled += len(job.row.request.prompt) if helpless else read

    def read_ahead(self, jobs: Sequence[Job]) -> None:
        """All of these prompts but their last tokens, together."""
        while jobs:
            try:
                read = self._model.prefill([job.row for job in jobs], self._limit)
            except Exception as error:
                self._note(f"prefill: {error}")
                return  # it is read the other way, where it will be seen whose fault that is
            for job, count in zip(jobs, read, strict=True):
                job.prefilled += count
            jobs = [job for job, count in zip(jobs, read, strict=True) if count and job.unread > 1]
