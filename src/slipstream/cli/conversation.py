"""A conversation with a model: its messages, its answers as they stream, and what they took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.cli.show import console
from slipstream.cli.token_view import TokenView
from slipstream.engines.base import Completion, Speculation, Tally, Wish

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import Engine, Ticket

Message = dict[str, Any]


@dataclass
class Speed:
    """Tokens and seconds of decoding, from the first chunk of every answer to its end."""

    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, stamps: list[tuple[float, int]], end: float) -> None:
        """Book an answer by the time and the number of tokens of each chunk."""
        self.answers += 1
        self.tokens += sum(count for _, count in stamps[1:])
        self.seconds += end - stamps[0][0] if len(stamps) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.tokens / self.seconds:.1f} tokens per second" if self.seconds else "too short to time"


@dataclass
class Conversation:
    """`messages` are those of user and assistant in turn; `system` stands before them in every request."""

    engine: Engine
    sampling: Sampling
    max_tokens: int
    depth: int | None = None
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    last: Completion | None = None
    last_speed: Speed = field(default_factory=Speed)
    total: Tally = field(default_factory=Tally)
    total_speed: Speed = field(default_factory=Speed)

    def check_template(self) -> None:
        """ValueError where the model has no chat template, or one that refuses the system prompt."""
        if not self.engine.text.instruct:
            raise ValueError(f"{self.engine.label} has no chat template; use generate --raw")
        self.engine.text.encode(self._request({"role": "user", "content": "hi"}))

    def answer(self, line: str) -> None:
        """Send a message and show what comes; Ctrl-C ends the answer and keeps what there is of it."""
        message = {"role": "user", "content": line}
        options = Wish(max_tokens=self.max_tokens, speculation=Speculation(depth=self.depth))
        (ticket,) = self.engine.submit(self._request(message), self.sampling, options)
        stamps: list[tuple[float, int]] = []
        try:
            _stream(ticket, stamps)
        except BaseException as error:  # a full disk ends it, too
            ticket.cancel()
            if not isinstance(error, KeyboardInterrupt):
                raise
        end = time.perf_counter()
        completion = ticket.result()
        if completion.error:
            raise ValueError(completion.error)
        if stamps:
            self.messages += [message, {"role": "assistant", "content": completion.text}]
            self._book(completion, stamps, end)

    def _request(self, message: Message) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages, message]

    def _book(self, completion: Completion, stamps: list[tuple[float, int]], end: float) -> None:
        self.last, self.last_speed = completion, Speed()
        self.total.merge(completion.tally)
        for speed in (self.last_speed, self.total_speed):
            speed.add(stamps, end)


def _stream(ticket: Ticket, stamps: list[tuple[float, int]]) -> None:
    """Show an answer as it comes, and note when; a last newline in any case."""
    view = TokenView(console())
    try:
        for chunk in ticket:
            if chunk.tokens:
                stamps.append((time.perf_counter(), len(chunk.tokens)))
            view.show(chunk)
    finally:
        view.end()
