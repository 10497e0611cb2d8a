"""Answers as Ollama's API writes them: whole, or as lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from slipstream.engines.base import Chunk, Completion
from slipstream.serve.openai.tool_parser import Said
from slipstream.serve.openai.tools import ToolUse
from slipstream.serve.openai.writer import Writer

NANO = 1_000_000_000


class OllamaWriter(Writer):
    """`began` and `loaded`: when the request came, and when its model was there."""

    media_type = "application/x-ndjson"

    def __init__(self, model: str, chat: bool, use: ToolUse | None, began: float, loaded: float) -> None:
        self._model, self._chat, self._began, self._loaded = model, chat, began, loaded
        self._parser = use.parser() if use else None

    def whole(self, samples: Sequence[Completion], pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        return self._line(self._said(samples[0].text, last=True)) | self._end(samples[0])

    def begin(self) -> str:
        return ""

    def cycle(self, index: int, chunk: Chunk) -> str:
        said = self._said(chunk.text, last=chunk.finish_reason is not None)
        return _written(self._line(said)) if said.content or said.calls else ""

    def end(self, samples: Sequence[Completion]) -> str:
        return _written(self._line(Said("")) | self._end(samples[0]))

    def failure(self, status: int, message: str) -> str:
        return _written({"error": message})

    def _said(self, text: str, last: bool) -> Said:
        return self._parser.feed(text, last) if self._parser else Said(text)

    def _line(self, said: Said) -> dict[str, Any]:
        content: dict[str, Any] = {"response": said.content}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": said.content}
            if said.calls:
                calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in said.calls]
                message["tool_calls"] = [{"function": call} for call in calls]
            content = {"message": message}
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat()} | content | {"done": False}

    def _end(self, sample: Completion) -> dict[str, Any]:
        """Why it ended, counts, times in nanoseconds, and the rule if it is lossy."""
        now = time.perf_counter()
        first = self.first_chunk or now
        return {
            "done": True,
            "done_reason": sample.finish_reason,
            "total_duration": int((now - self._began) * NANO),
            "load_duration": int((self._loaded - self._began) * NANO),
            "prompt_eval_count": sample.prompt_tokens,
            "prompt_eval_duration": int(max(0.0, first - self._loaded) * NANO),
            "eval_count": sample.completion_tokens,
            "eval_duration": int((now - first) * NANO),
            **({"lossless": False, "rule": sample.rule} if sample.lossless is False else {}),
        }


def _written(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
