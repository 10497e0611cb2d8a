"""Answers as OpenAI's API writes them, whole or in events of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slipstream.engines.base import Chunk, Completion, Logprob, SpeculationStats
from slipstream.engines.completion import DraftedTree
from slipstream.models.text.codec import TextCodec
from slipstream.serve.openai.logprobs import chat_logprobs, text_logprobs, vllm_prompt_logprobs, written
from slipstream.serve.openai.tool_parser import Said
from slipstream.serve.openai.tools import ToolUse
from slipstream.serve.openai.writer import ENCODER


@dataclass(frozen=True)
class Echo:
    """The prompt before a sample, where it was asked for. Its tokens are named where their logprobs are wanted."""

    text: str = ""
    tokens: Sequence[int] = ()
    pieces: Sequence[str] = ()  # the text of each token

    def entries(self, logprobs: Sequence[Logprob | None] | None) -> list[tuple[int, Logprob | None]]:
        return list(zip(self.tokens, logprobs or (), strict=True)) if self.tokens else []


@dataclass
class Answer:
    """What all parts of one answer have in common."""

    model: str
    text: TextCodec
    chat: bool
    n: int = 1  # samples of each prompt
    logprobs: int | None = None  # so many alternatives beside each token's own; None: no logprobs
    prompt_logprobs: int | None = None  # the same of the prompt, as vLLM writes them
    origins: bool = True
    token_ids: bool = False
    tools: ToolUse | None = None
    predicted: bool = False  # whether the request carried a prediction
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def _head(self, streamed: bool) -> dict[str, Any]:
        if self.chat:
            kind, prefix = ("chat.completion.chunk" if streamed else "chat.completion"), "chatcmpl"
        else:
            kind, prefix = "text_completion", "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def whole(
        self, samples: Sequence[Completion], echoes: Sequence[Echo], pieces: Sequence[Sequence[str]]
    ) -> dict[str, Any]:
        """All samples. `pieces` are the texts of their tokens."""
        choices = []
        for index, (sample, echo) in enumerate(zip(samples, echoes, strict=True)):
            said = self.tools.parser().feed(sample.text, last=True) if self.tools else Said(echo.text + sample.text)
            choice = self._choice(index, said, sample.finish_reason)
            entries = [*echo.entries(sample.prompt_logprobs), *_entries(sample.logprobs)]
            choice["logprobs"] = self._logprobs(entries, [*echo.pieces, *pieces[index]], 0)
            if self.token_ids:
                choice["token_ids"] = sample.token_ids
            if self.prompt_logprobs is not None and not self.chat:
                choice["prompt_logprobs"] = self._prompt(sample)
            choices.append(choice)
        answer = self._head(streamed=False) | {"choices": choices, "usage": self._usage(samples)}
        return answer | (
            {"prompt_logprobs": self._prompt(samples[0])} if self.chat and self.prompt_logprobs is not None else {}
        )

    def _prompt(self, sample: Completion) -> list[Any]:
        return vllm_prompt_logprobs(self.text, sample.prompt_logprobs or [], self.prompt_logprobs or 0)

    def first(self, index: int) -> str:
        """The event that opens a chat's answer."""
        return self._event(index, '"delta":{"role":"assistant","content":""}', None, "null")

    def echo(self, index: int, echo: Echo, logprobs: Sequence[Logprob | None] = ()) -> str:
        """The event that repeats a prompt."""
        entries = self._logprobs(echo.entries(logprobs), echo.pieces, 0)
        return self._event(index, f'"text":{ENCODER.encode(echo.text)}', None, ENCODER.encode(entries))

    def event(self, index: int, chunk: Chunk, said: Said, start: int) -> str:
        """The event of one cycle of one sample, whose text begins at offset `start`. `slipstream` is an extension:
        where each token came from."""
        encode, more = ENCODER.encode, ""
        entries = self._logprobs(_entries(chunk.logprobs), chunk.pieces, start)
        if self.token_ids:
            more = f',"token_ids":{encode(chunk.token_ids)}'
        if self.origins and chunk.origins:
            origins = '","'.join(chunk.origins)  # these words need no escapes
            pieces = ",".join([encode(piece) for piece in chunk.pieces])
            draft = "" if chunk.draft is None else f',"draft":{encode(self._draft(chunk.draft))}'
            more += f',"slipstream":{{"origins":["{origins}"],"pieces":[{pieces}]{draft}}}'
        written = "null" if entries is None else encode(entries)
        return self._event(index, self._delta(said), _reason(said, chunk.finish_reason), written, more)

    def _delta(self, said: Said) -> str:
        """The new text of a choice, and its new tool calls."""
        if not self.chat:
            return f'"text":{ENCODER.encode(said.content)}'
        if not said.calls:
            return f'"delta":{{"content":{ENCODER.encode(said.content)}}}'
        delta: dict[str, Any] = {"content": said.content} if said.content else {}
        calls = [{"index": said.earlier + i, **call.written()} for i, call in enumerate(said.calls)]
        return f'"delta":{ENCODER.encode(delta | {"tool_calls": calls})}'

    def _event(self, index: int, delta: str, finish_reason: str | None, logprobs: str, more: str = "") -> str:
        """One event with one choice. It is written by hand, since most of it is the same in every event of a stream."""
        reason = f'"{finish_reason}"' if finish_reason else "null"
        return (
            f'{self._begin}"choices":[{{"index":{index},{delta},"finish_reason":{reason},"logprobs":{logprobs}'
            f"{more}}}]}}\n\n"
        )

    @cached_property
    def _begin(self) -> str:
        """The beginning of every event, up to its choices."""
        return f"data: {ENCODER.encode(self._head(streamed=True))[:-1]},"

    def _draft(self, draft: DraftedTree) -> dict[str, Any]:
        """The draft of a cycle: the text and the parent of each node, and the nodes that were accepted."""
        tokens = [written(self.text, token) for token in draft.token_ids]
        return {"tokens": tokens, "parents": draft.parents, "path": draft.path}

    def last(self, samples: Sequence[Completion]) -> str:
        """The event with the usage of the whole request."""
        return f'{self._begin}"choices":[],"usage":{ENCODER.encode(self._usage(samples))}}}\n\n'

    def _usage(self, samples: Sequence[Completion]) -> dict[str, Any]:
        counts = usage(samples, self.n)
        if not self.predicted:
            return counts
        drafted, accepted = counts["speculation"]["drafted"], counts["speculation"]["accepted"]
        return counts | {
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            }
        }

    def _choice(self, index: int, said: Said, finish_reason: str | None) -> dict[str, Any]:
        if not self.chat:
            return {"index": index, "text": said.content, "finish_reason": finish_reason}
        calls = [call.written() for call in said.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said.content or (None if calls else ""),
            "refusal": None,
        }
        message |= {"tool_calls": calls} if calls else {}
        return {"index": index, "message": message, "finish_reason": _reason(said, finish_reason)}

    def _logprobs(
        self, entries: Sequence[tuple[int, Logprob | None]], pieces: Sequence[str], start: int
    ) -> dict[str, Any] | None:
        """Of tokens by their ids; None where they were not asked for."""
        if self.logprobs is None:
            return None
        if self.chat:
            return chat_logprobs(self.text, [own for _, own in entries if own is not None])
        return text_logprobs(self.text, entries, pieces, self.logprobs, start)


def _reason(said: Said, finish_reason: str | None) -> str | None:
    """Why a text ended, as OpenAI's API says it: a text with calls ends with them."""
    return "tool_calls" if said.called and finish_reason == "stop" else finish_reason


def _entries(logprobs: Sequence[Logprob]) -> list[tuple[int, Logprob | None]]:
    return [(own.token_id, own) for own in logprobs]


def usage(samples: Sequence[Completion], n: int = 1) -> dict[str, Any]:
    """Exact counts. `n` samples of one prompt stand side by side and count its tokens once, as OpenAI does."""
    prompt = sum(sample.prompt_tokens for sample in samples[::n])
    completion = sum(sample.completion_tokens for sample in samples)
    stats = SpeculationStats()
    for sample in samples:
        stats.merge(sample.stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "speculation": {
            "drafted": sum(stats.drafted),
            "accepted": sum(stats.accepted),
            "cycles": stats.cycles,
            "tau": stats.tau,
            "acceptance": stats.acceptance,
            "rule": samples[0].rule if samples else None,
            "lossless": samples[0].lossless if samples else None,
            "repeatable": samples[0].repeatable if samples else None,
            "drafter_failed": stats.failures > 0,
            **route_entry(samples),
        },
    }


def route_entry(samples: Sequence[Completion]) -> dict[str, Any]:
    """Which model of a route wrote the first sample, and its score; empty without a route."""
    route = samples[0].route if samples else None
    return {} if route is None else {"route": {"model": route.model, "score": route.score}}
