"""From a request of the API to samples under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.engines.base import Engine, RequestHandle
from slipstream.engines.prompt import Prompt, encode
from slipstream.serve.config import ServerLimits
from slipstream.serve.errors import ApiError
from slipstream.serve.models import ServedModel
from slipstream.serve.openai import convert
from slipstream.serve.openai.answers import Answer, Echo
from slipstream.serve.openai.logprobs import prompt_pieces
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.openai.tools import ToolUse, chat_prompt, tool_use


@dataclass(frozen=True)
class Started:
    """The samples of a request, how they are answered, and what stands before each."""

    handles: Sequence[RequestHandle]
    answer: Answer
    echoes: Sequence[Echo]

    def cancel(self) -> None:
        for handle in self.handles:
            handle.cancel()


def start(served: ServedModel, body: ChatRequest | CompletionRequest, limits: ServerLimits) -> Started:
    """Check a request and submit it. It takes a while where a prompt is long, so it runs in a thread of its own."""
    engine = served.engine
    _check(body)
    try:
        if isinstance(body, ChatRequest):
            use = tool_use(body, engine.text)
            prompts: list[Prompt] = [chat_prompt(body, engine.text, use)]
            tokens = convert.chat_tokens(body, engine)
        else:
            use, prompts = None, convert.prompts(body)
            tokens = convert.COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        n = body.n or 1
        if len(prompts) * n > limits.max_samples:
            raise ApiError(400, f"prompts times n is {len(prompts) * n}; it must be {limits.max_samples} or less")
        echoes = _echoes(body, prompts, engine, n)
        handles = _submit(engine, prompts, body, tokens, use)
    except (ValueError, OverflowError) as error:
        raise ApiError(400, str(error)) from error
    answer = Answer(
        served.name,
        engine.text,
        isinstance(body, ChatRequest),
        n,
        convert.logprobs(body),
        body.prompt_logprobs,
        token_ids=body.return_token_ids,
        tools=use,
    )
    return Started(handles, answer, echoes)


def _check(body: ChatRequest | CompletionRequest) -> None:
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs are not streamed; leave out stream", "prompt_logprobs")
    if isinstance(body, ChatRequest):
        return
    if body.suffix:
        raise ApiError(
            400, "suffix is not offered; put what follows into the prompt as the model's template wants it", "suffix"
        )
    if body.best_of not in (None, body.n or 1):
        raise ApiError(400, "best_of is not offered; use n", "best_of")


def _submit(
    engine: Any,
    prompts: Sequence[Prompt],
    body: ChatRequest | CompletionRequest,
    tokens: int,
    use: ToolUse | None,
) -> list[RequestHandle]:
    handles: list[RequestHandle] = []
    try:
        sampling = convert.sampling(body)
        options = convert.options(body, tokens, raw=isinstance(body, CompletionRequest), use=use)
        for prompt in prompts:
            handles += engine.submit(prompt, sampling, options)
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    return handles


def _echoes(body: ChatRequest | CompletionRequest, prompts: Sequence[Prompt], engine: Engine, n: int) -> list[Echo]:
    """What stands before each sample: its prompt, where that was asked for."""
    if isinstance(body, ChatRequest) or not body.echo:
        return [Echo()] * (len(prompts) * n)
    echoes = []
    for prompt in prompts:
        ids = encode(prompt, True, engine.text)
        text = prompt if isinstance(prompt, str) else engine.text.decode(ids)
        tokens = [] if body.logprobs is None else ids
        echoes += [Echo(text, tokens, prompt_pieces(engine.text, tokens, text))] * n
    return echoes
