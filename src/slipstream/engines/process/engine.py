"""An engine whose model runs in another process. It has the interface of every engine.

Prompts are encoded and text is decoded here; the other process runs the model. If it dies, the requests under way end
with an error, and it is started again.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.engines.base import Capabilities, Engine, ModelInfo, RequestHandle, check_process
from slipstream.engines.options import GenerationOptions, checked
from slipstream.engines.process.channel import RowOutput
from slipstream.engines.process.child import EngineChild
from slipstream.engines.process.handle import RemoteJob
from slipstream.engines.prompt import ConditionedPrompt, Prompt, encode
from slipstream.models.speech.audio import Audio
from slipstream.models.text.codec import TextCodec

logger = logging.getLogger("slipstream.serve")
RESTART_SECONDS = (0.0, 1.0, 5.0, 30.0)  # before the next start, by the number of starts that failed
NO_AUDIO = "an engine in a process of its own reads text only; for audio start the server with --engine-process off"
STARTING = "the engine's process is being started again; try again in a moment"


class ProcessEngine(Engine):
    """`open_engine` is a function without arguments that can be pickled, such as a `functools.partial`. It is called in
    the new process, and an error that it raises is raised here."""

    start_is_quick = True

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._opening, self._pid = pickle.dumps(open_engine), os.getpid()
        self._lock, self._answered = threading.Lock(), threading.Condition()
        self._next, self._jobs, self._requests = 0, dict[int, RemoteJob](), dict[int, list[RemoteJob]]()
        self._calls: dict[int, tuple[Any, Exception | None] | None] = {}
        self._closing = threading.Event()
        self._child = EngineChild(self._opening)
        self._about = self._child.wait_ready()
        self._ready = True
        self._thread = threading.Thread(target=self._supervise, name="slipstream-engine-process", daemon=True)
        self._thread.start()

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
        """Counts since the start of the process, up to a fifth of a second old."""
        counts: dict[str, Any] = self._about["stats"]
        return counts

    @property
    def process_id(self) -> int:
        """The id of the process that runs the model."""
        return self._child.pid

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
        if self._closing.is_set():
            raise ValueError("the engine is closed; make a new one")
        if not self._ready:
            raise ValueError(STARTING)
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
            self._child.channel.send("submit", number, ids, sampling, options)
        except OSError:
            self._end(range(number, number + options.n), "error", STARTING)
        return list(jobs)

    def _cancel(self, number: int) -> None:
        with suppress(OSError):  # the process has ended, and so do its requests
            self._child.channel.send("cancel", number)

    def call(self, function: Callable[..., Any], *values: Any) -> Any:
        """The result of `function(engine, *values)` in the other process. All of it must be possible to pickle."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        self._calls[number] = None
        self._child.channel.send("call", number, function, values)
        with self._answered:
            self._answered.wait_for(lambda: self._calls[number] is not None)
        result, error = self._calls.pop(number) or (None, None)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        if os.getpid() != self._pid or self._closing.is_set():
            return
        self._closing.set()
        if self._ready:
            self._child.end()
        else:
            self._child.kill()  # it loads the model, and nobody waits for it
        self._thread.join()

    def _supervise(self) -> None:
        """Read what the process sends, and start it again where it ends."""
        while True:
            while (message := self._child.channel.receive()) is not None:
                self._take(*message)
            self._ready = False
            how = self._child.reap()
            if self._closing.is_set():
                self._end_all("cancelled", "the engine is closed")
                return
            logger.error("the engine's process ended (%s); it is started again", how)
            self._end_all("error", f"the engine's process ended ({how}); it is started again")
            if not self._restart():
                return

    def _restart(self) -> bool:
        """False where the engine is closed meanwhile."""
        failed = 0
        while not self._closing.wait(RESTART_SECONDS[min(failed, len(RESTART_SECONDS) - 1)]):
            self._child = EngineChild(self._opening)
            try:
                self._about = self._child.wait_ready()
            except Exception as error:
                failed += 1
                logger.error("the engine's process cannot be started: %s", error)
                continue
            self._ready = True
            return True
        return False

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
