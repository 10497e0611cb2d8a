"""Answers of `/v1/responses`, whole or as the typed events of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.engines.base import Chunk, Completion, Logprob
from slipstream.models.text.codec import TextCodec
from slipstream.serve.errors import error_body
from slipstream.serve.openai.answers import usage
from slipstream.serve.openai.logprobs import chat_logprobs
from slipstream.serve.openai.response_schema import ResponseRequest
from slipstream.serve.openai.tool_parser import Said, ToolCall
from slipstream.serve.openai.tools import ToolUse
from slipstream.serve.openai.writer import Writer, data_line


@dataclass
class MessageItem:
    """The text of an answer while it grows."""

    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def written(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}


def _call_item(call: ToolCall, status: str = "completed") -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": call.name, "status": status}
    return item | {"arguments": "" if status == "in_progress" else call.arguments}


class ResponseWriter(Writer):
    def __init__(
        self, model: str, text: TextCodec, request: ResponseRequest, use: ToolUse | None, logprobs: bool
    ) -> None:
        self._model, self._text, self._request, self._logprobs = model, text, request, logprobs
        self._use, self._parser = use, use.parser() if use else None
        self._id, self._created = f"resp_{uuid.uuid4().hex}", int(time.time())
        self._message: MessageItem | None = None  # the one that grows
        self._output: list[dict[str, Any]] = []  # items that are done
        self._number = 0  # of the next event

    def whole(self, samples: Sequence[Completion], pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        (sample,) = samples
        said = self._parser.feed(sample.text, last=True) if self._parser else Said(sample.text)
        output = [_call_item(call) for call in said.calls]
        if said.content or not output:
            status = "completed" if sample.finish_reason == "stop" else "incomplete"
            output.insert(0, MessageItem(said.content, self._entries(sample.logprobs)).written(status))
        return self._response(output, sample)

    def begin(self) -> str:
        kinds = ("created", "in_progress")
        return "".join([self._event(f"response.{kind}", response=self._response([])) for kind in kinds])

    def cycle(self, index: int, chunk: Chunk) -> str:
        return "".join(self._events(chunk))

    def _events(self, chunk: Chunk) -> Iterator[str]:
        last = chunk.finish_reason is not None
        said = self._parser.feed(chunk.text, last) if self._parser else Said(chunk.text)
        if said.content:
            yield from self._grow(said.content, self._entries(chunk.logprobs))
        if said.calls or last:
            yield from self._finish_message("completed" if chunk.finish_reason in (None, "stop") else "incomplete")
        for call in said.calls:
            yield from self._call(call)
        if last and not self._output:  # an answer has at least one item
            yield from self._grow("", [])
            yield from self._finish_message("completed" if chunk.finish_reason == "stop" else "incomplete")

    def end(self, samples: Sequence[Completion]) -> str:
        response = self._response(self._output, samples[0])
        return self._event(f"response.{response['status']}", response=response)

    def failure(self, status: int, message: str) -> str:
        error = error_body(status, message)["error"]
        return self._event("error", code=error["code"], message=error["message"], param=error["param"])

    def _grow(self, text: str, entries: list[dict[str, Any]]) -> Iterator[str]:
        if self._message is None:
            self._message = MessageItem()
            item = self._message.written("in_progress")
            yield self._event("response.output_item.added", output_index=len(self._output), item=item)
            yield self._event("response.content_part.added", **self._place(), part=self._message.part())
        self._message.text += text
        self._message.logprobs += entries
        if text:
            yield self._event("response.output_text.delta", **self._place(), delta=text, logprobs=entries)

    def _finish_message(self, status: str) -> Iterator[str]:
        message, place = self._message, self._place()
        if message is None:
            return
        yield self._event("response.output_text.done", **place, text=message.text, logprobs=message.logprobs)
        yield self._event("response.content_part.done", **place, part=message.part())
        yield self._item_done(message.written(status))
        self._message = None

    def _call(self, call: ToolCall) -> Iterator[str]:
        index, item = len(self._output), _call_item(call, "in_progress")
        place = {"item_id": item["id"], "output_index": index}
        yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        done = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **done)
        yield self._item_done(_call_item(call))

    def _item_done(self, item: dict[str, Any]) -> str:
        self._output.append(item)
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        """Where the message that grows stands."""
        item = self._message.id if self._message else ""
        return {"item_id": item, "output_index": len(self._output), "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        line = data_line({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return f"event: {kind}\n{line}"

    def _entries(self, logprobs: Sequence[Logprob]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = chat_logprobs(self._text, logprobs)["content"] if self._logprobs else []
        return entries

    def _response(self, output: Sequence[dict[str, Any]], sample: Completion | None = None) -> dict[str, Any]:
        """The response object; without a sample it is still under way."""
        cut = sample is not None and sample.finish_reason == "length"
        asked = self._request.model_dump(by_alias=True, exclude_none=True, mode="json")
        kept = ("instructions", "max_output_tokens", "temperature", "top_p", "metadata", "user")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if sample is None else "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self._model,
            "output": list(output),
            **{name: asked.get(name) for name in kept},
            "parallel_tool_calls": self._request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "truncation": "disabled",
            "usage": None if sample is None else _usage(sample),
        }


def _usage(sample: Completion) -> dict[str, Any]:
    counts = usage([sample])
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
        "speculation": counts["speculation"],
    }
