"""Chat and text completions as OpenAI's API streams them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.errors import error_body
from slipstream.serve.openai.answers import Answer, Echo
from slipstream.serve.openai.tool_parser import Said
from slipstream.serve.openai.writer import Writer, data_line

DONE = "data: [DONE]\n\n"


class CompletionWriter(Writer):
    """`echoes` stand before the samples. `usage`: the last event tells the usage."""

    def __init__(self, answer: Answer, echoes: Sequence[Echo], usage: bool) -> None:
        self._answer, self._echoes, self._usage, self.n = answer, echoes, usage, answer.n
        self._parsers = [answer.tools.parser() for _ in echoes] if answer.tools else []
        self._offsets = [len(echo.text) for echo in echoes]  # where the next text of each sample begins

    def whole(self, samples: Sequence[Completion], pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        return self._answer.whole(samples, self._echoes, pieces)

    def begin(self) -> str:
        events = []
        for index, echo in enumerate(self._echoes):
            if self._answer.chat:
                events.append(self._answer.first(index))
            elif echo.text and not echo.tokens:
                events.append(self._answer.echo(index, echo))
        return "".join(events)

    def cycle(self, index: int, chunk: Chunk) -> str:
        last = chunk.finish_reason is not None
        said = self._parsers[index].feed(chunk.text, last) if self._parsers else Said(chunk.text)
        event = self._answer.event(index, chunk, said, self._offsets[index])
        self._offsets[index] += len(chunk.text)
        if chunk.prompt_logprobs:
            event = self._answer.echo(index, self._echoes[index], chunk.prompt_logprobs) + event
        return event

    def end(self, samples: Sequence[Completion]) -> str:
        return self._answer.last(samples) + DONE if self._usage else DONE

    def failure(self, status: int, message: str) -> str:
        return data_line(error_body(status, message)) + DONE
