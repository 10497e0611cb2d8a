"""A conversation with a model: its messages, its streamed answers and their statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.bench.measure.measurement import Measurement
from slipstream.cli.generation import GenerationTask, Run, run_task
from slipstream.cli.output.show import console
from slipstream.cli.output.token_view import TokenView
from slipstream.engines.base import GenerationOptions, Speculation

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import Engine

Message = dict[str, Any]


@dataclass
class Conversation:
    """`messages` are those of user and assistant in turn. `system` precedes them in every request."""

    engine: Engine
    sampling: Sampling
    max_tokens: int
    depth: int | None = None
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    last: Run | None = None  # the last answer
    answers: int = 0
    total: Measurement = field(default_factory=Measurement)  # of all answers, including undone ones

    def check_template(self) -> None:
        """Raise ValueError if the model has no chat template, or if the template refuses the system prompt."""
        if not self.engine.text.instruct:
            raise ValueError(f"{self.engine.label} has no chat template; use generate --raw")
        self.engine.text.encode(self._request({"role": "user", "content": "hi"}))

    def answer(self, line: str) -> None:
        """Send a message and show the answer. Ctrl-C ends the answer and keeps the part so far."""
        message = {"role": "user", "content": line}
        options = GenerationOptions(max_tokens=self.max_tokens, speculation=Speculation(depth=self.depth))
        view = TokenView(console())
        run = run_task(self.engine, GenerationTask(self._request(message), self.sampling, options), view.show)
        view.end()
        if run.times.tokens:
            self.messages += [message, {"role": "assistant", "content": run.samples[0].text}]
            self._add_statistics(run)

    def _request(self, message: Message) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages, message]

    def _add_statistics(self, run: Run) -> None:
        self.last = run
        self.answers += 1
        for name in ("tokens", "seconds", "decoded", "decoding"):
            setattr(self.total, name, getattr(self.total, name) + getattr(run.times, name))
        self.total.tally.merge(run.stats)
