"""Answers as OpenAI's API writes them, whole or in events of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.engines.base import Chunk, Completion, Logprob, SpeculationStats
from slipstream.models.text.codec import TextCodec


@dataclass
class Answer:
    """What all parts of one answer have in common."""

    model: str
    text: TextCodec
    chat: bool
    n: int = 1  # samples of each prompt
    origins: bool = True
    token_ids: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def _head(self, streamed: bool) -> dict[str, Any]:
        if self.chat:
            kind, prefix = ("chat.completion.chunk" if streamed else "chat.completion"), "chatcmpl"
        else:
            kind, prefix = "text_completion", "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def whole(
        self, samples: Sequence[Completion], echoes: Sequence[str], pieces: Sequence[Sequence[str]] | None
    ) -> dict[str, Any]:
        """All samples. `pieces` are the texts of their tokens, where logprobs are wanted."""
        choices = []
        for index, sample in enumerate(samples):
            choice = self._content(index, echoes[index] + sample.text, streamed=False)
            choice["finish_reason"] = sample.finish_reason
            choice["logprobs"] = self.logprobs(sample.logprobs, pieces[index]) if pieces else None
            if self.token_ids:
                choice["token_ids"] = sample.token_ids
            choices.append(choice)
        return self._head(streamed=False) | {"choices": choices, "usage": usage(samples, self.n)}

    def first(self, index: int) -> dict[str, Any]:
        """The event that opens a chat's answer."""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._head(streamed=True) | {"choices": [choice | {"logprobs": None}]}

    def echo(self, index: int, prompt: str) -> dict[str, Any]:
        """The event that repeats a prompt."""
        choice = self._content(index, prompt, streamed=True) | {"finish_reason": None, "logprobs": None}
        return self._head(streamed=True) | {"choices": [choice]}

    def event(self, index: int, chunk: Chunk, want_logprobs: bool) -> dict[str, Any]:
        """One cycle of one sample. `slipstream` is an extension: where each token came from."""
        choice = self._content(index, chunk.text, streamed=True)
        choice["finish_reason"] = chunk.finish_reason
        choice["logprobs"] = self.logprobs(chunk.logprobs, chunk.pieces) if want_logprobs else None
        if self.token_ids:
            choice["token_ids"] = list(chunk.token_ids)
        if self.origins and chunk.token_ids:
            origins = [str(origin) for origin in chunk.origins]
            choice["slipstream"] = {"origins": origins, "pieces": list(chunk.pieces)}
        return self._head(streamed=True) | {"choices": [choice]}

    def last(self, samples: Sequence[Completion]) -> dict[str, Any]:
        """The event with the usage of the whole request."""
        return self._head(streamed=True) | {"choices": [], "usage": usage(samples, self.n)}

    def _content(self, index: int, text: str, streamed: bool) -> dict[str, Any]:
        if not self.chat:
            return {"index": index, "text": text}
        if streamed:
            return {"index": index, "delta": {"content": text}}
        return {"index": index, "message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, entries: Sequence[Logprob], pieces: Sequence[str]) -> dict[str, Any]:
        if self.chat:
            content = [
                self._entry(own.token_id, own.logprob)
                | {"top_logprobs": [self._entry(token, value) for token, value in own.top_logprobs]}
                for own in entries
            ]
            return {"content": content, "refusal": None}
        tokens = [self._written(own.token_id) for own in entries]
        offsets = [0]
        for piece in pieces:
            offsets.append(offsets[-1] + len(piece))
        return {
            "tokens": tokens,
            "token_logprobs": [own.logprob for own in entries],
            "top_logprobs": [{self._written(t): value for t, value in own.top_logprobs} for own in entries],
            "text_offset": offsets[: len(tokens)],
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        written = self._written(token)
        return {"token": written, "logprob": max(logprob, -9999.0), "bytes": list(written.encode())}

    def _written(self, token: int) -> str:
        return self.text.decode([token]) or self.text.token(token)


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
        },
    }
