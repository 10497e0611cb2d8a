"""Chunked prefill: reads several prompts in pieces while other rows decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.core.interfaces import Model
from slipstream.engines.job import Job

PIECES = 4  # a prompt is not read in pieces smaller than the step's tokens divided by this


class PromptReader:
    """Reads at most `limit` tokens per step, of all prompts together. `note` receives failures of shared passes."""

    def __init__(self, model: Model, limit: int, note: Callable[[str], None]) -> None:
        self._model, self._limit, self._note = model, limit, note

    def read(self, jobs: Sequence[Job]) -> list[Job]:
        """Read prompts in the order of arrival. Returns the rows that are ready for the score pass.

        The score pass reads the rest of a prompt if that fits into the step. A longer prompt is read in pieces, unless
        a piece would be too small to be worth a pass."""
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
        """Read up to `limit` tokens, or copy a stored prefix. With limit 0, only the latter."""
        read = self._model.prefill([job.row], limit)[0]
        unsupported = not read and limit == self._limit  # a model without prefill: the score pass reads the prompt
        job.prefilled += job.to_read if unsupported else read

    def read_ahead(self, jobs: Sequence[Job]) -> None:
        """Read all tokens of these prompts but the last ones, in shared passes."""
        while jobs:
            try:
                read = self._model.prefill([job.row for job in jobs], self._limit)
            except Exception as error:
                self._note(f"prefill: {error}")
                return  # `read` reads them separately and finds the failing one
            for job, count in zip(jobs, read, strict=True):
                job.prefilled += count
            jobs = [job for job, count in zip(jobs, read, strict=True) if count and job.unread > 1]
