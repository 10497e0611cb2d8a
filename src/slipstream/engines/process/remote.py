"""What engines have in common whose model runs in another process.

Prompts are encoded and text is decoded here; the other process runs the model.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.engines.base import Capabilities, Engine, ModelInfo, RequestHandle, check_process
from slipstream.engines.options import GenerationOptions, checked
from slipstream.engines.process.channel import Channel, RowOutput
from slipstream.engines.process.handle import RemoteJob
from slipstream.engines.prompt import ConditionedPrompt, Prompt, encode
from slipstream.models.speech.audio import Audio
from slipstream.models.text.codec import TextCodec

NO_AUDIO = "an engine in another process takes text only as a prompt; transcribe audio with call(transcribe, audio)"
STARTING = "the engine's process is being started again; try again in a moment"
CLOSED = "the engine is closed; make a new one"


class RemoteEngine(Engine):
    """Sends requests over a channel. Whoever receives from the channel calls `_take` with each message."""

    start_is_quick = True

    def __init__(self) -> None:
        self._pid, self._lock, self._answered = os.getpid(), threading.Lock(), threading.Condition()
        self._next, self._jobs, self._requests = 0, dict[int, RemoteJob](), dict[int, list[RemoteJob]]()
        self._calls: dict[int, tuple[Any, Exception | None] | None] = {}
        self._about: dict[str, Any] = {}
        self._ready, self._unready = False, STARTING  # and why it takes no requests where it is not

    @property
    @abstractmethod
    def _channel(self) -> Channel:
        """To the process that runs the model."""

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        offered: Capabilities = self._about["capabilities"]
        return offered

    @property
    def model_info(self) -> ModelInfo:
        info: ModelInfo = self._about["model_info"]
        return info

    @property
    def text(self) -> TextCodec:
        codec: TextCodec = self._about["text"]
        return codec

    @property
    def version(self) -> str:
        return str(self._about["version"])

    @property
    def stats(self) -> dict[str, Any]:
        """Counts since the start of the process. They are sent to the process that started it, ten times a second."""
        counts: dict[str, Any] = self._about["stats"]
        return counts

    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        handles = self.start(prompt, sampling, options)
        with self._answered:
            self._answered.wait_for(lambda: handles[0].accepted())
        return handles

    def start(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        check_process(self._pid)
        if not self._ready:
            raise ValueError(self._unready)
        if isinstance(prompt, Audio | ConditionedPrompt):
            raise ValueError(NO_AUDIO)
        sampling, options = checked(sampling, options)
        ids = encode(prompt, options.raw, self.text, self.model_info.context_length)
        request = Request(ids, sampling, options.max_tokens, min_tokens=options.min_tokens)
        with self._lock:
            number, self._next = self._next, self._next + options.n
        jobs = [
            RemoteJob(request, self.text.stream(), options.prompt_logprobs, partial(self._cancel, sample))
            for sample in range(number, number + options.n)
        ]
        self._requests[number] = jobs
        self._jobs.update(enumerate(jobs, number))
        try:
            self._channel.send("submit", number, ids, sampling, options)
        except OSError:
            self._end(range(number, number + options.n), "error", STARTING)
        return list(jobs)

    def _cancel(self, number: int) -> None:
        with suppress(OSError):  # the process has ended, and so do its requests
            self._channel.send("cancel", number)

    def call(self, function: Callable[..., Any], *values: Any) -> Any:
        """The result of `function(engine, *values)` in the other process. All of it must be possible to pickle."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        self._calls[number] = None
        try:
            self._channel.send("call", number, function, values)
        except OSError:
            del self._calls[number]
            raise ValueError(self._unready) from None
        with self._answered:
            self._answered.wait_for(lambda: self._calls[number] is not None)
        result, error = self._calls.pop(number) or (None, None)
        if error is not None:
            raise error
        return result

    def _take(self, name: str, *values: Any) -> None:
        if name == "output":
            self._take_output(*values)
        elif name == "refused":
            self._accept(*values)
        elif name == "stats":
            (self._about["stats"],) = values
        else:
            self._take_answer(*values)

    def _take_output(self, accepted: list[int], rows: list[RowOutput]) -> None:
        for number in accepted:
            self._accept(number)
        jobs = self._jobs
        for number, tokens, origins, rest in rows:
            if not jobs[number].receive(tokens, origins, rest):
                del jobs[number]

    def _accept(self, number: int, refusal: Exception | None = None) -> None:
        jobs = self._requests.pop(number)
        for sample, job in enumerate(jobs, number):
            job.accept(refusal)
            if refusal is not None:
                self._jobs.pop(sample, None)
        with self._answered:
            self._answered.notify_all()

    def _take_answer(self, number: int, result: Any, error: Exception | None) -> None:
        with self._answered:
            self._calls[number] = (result, error)
            self._answered.notify_all()

    def _end(self, numbers: Sequence[int], reason: str, error: str) -> None:
        """End samples that the process does not end."""
        for number in numbers:
            self._requests.pop(number, None)
            if (job := self._jobs.pop(number, None)) is not None:
                job.accept()
                job.end(reason, error)

    def _end_all(self, reason: str, error: str) -> None:
        self._end(list(self._jobs), reason, error)
        with self._answered:
            self._calls = {number: (None, RuntimeError(error)) for number in self._calls}
            self._answered.notify_all()
