"""From a request of the API to samples under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from slipstream.engines.base import Engine, RequestHandle
from slipstream.engines.prompt import Prompt, encode_all
from slipstream.serve.config import ServerLimits
from slipstream.serve.errors import ApiError, describe
from slipstream.serve.models import ServedModel
from slipstream.serve.openai import convert
from slipstream.serve.openai.answers import Answer, Echo
from slipstream.serve.openai.completion_writer import CompletionWriter
from slipstream.serve.openai.logprobs import prompt_pieces
from slipstream.serve.openai.response_schema import ResponseRequest
from slipstream.serve.openai.response_writer import ResponseWriter
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.openai.tools import ToolUse, chat_prompt, tool_use
from slipstream.serve.openai.writer import Writer


@dataclass(frozen=True)
class Started:
    """The samples of a request, and what writes them."""

    handles: Sequence[RequestHandle]
    writer: Writer

    def cancel(self) -> None:
        for handle in self.handles:
            handle.cancel()


def start(
    served: ServedModel, body: ChatRequest | CompletionRequest, limits: ServerLimits, tenant: str = ""
) -> Started:
    """Check a request of chat or text completions and submit it for the holder of an API key (`tenant`). It takes a
    while where a prompt is long, so it runs in a thread of its own."""
    engine, n = served.engine, body.n or 1
    _check(body)
    try:
        use = tool_use(body, engine.text) if isinstance(body, ChatRequest) else None
        prompts = _prompts(body, engine, use)
        if len(prompts) * n > limits.max_samples:
            raise ApiError(400, f"prompts times n is {len(prompts) * n}; it must be {limits.max_samples} or less")
        encoded = _encoded(prompts, body, engine, *convert.asked_tokens(body))
        echoes = _echoes(body, prompts, encoded, engine, n)
        handles = submit(engine, encoded, body, use, tenant)
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
        predicted=isinstance(body, ChatRequest) and body.prediction is not None,
    )
    usage = body.stream_options is not None and body.stream_options.include_usage
    return Started(handles, CompletionWriter(answer, echoes, usage))


def start_response(served: ServedModel, body: ResponseRequest, limits: ServerLimits, tenant: str = "") -> Started:
    """Check a request of `/v1/responses` and submit it."""
    engine = served.engine
    try:
        chat = body.chat()
        use = tool_use(chat, engine.text)
        prompts = _prompts(chat, engine, use)
        encoded = _encoded(prompts, chat, engine, "max_output_tokens", body.max_output_tokens)
        handles = submit(engine, encoded, chat, use, tenant)
    except ValidationError as error:
        raise ApiError(400, *describe(error.errors())) from error
    except (ValueError, OverflowError) as error:
        raise ApiError(400, str(error)) from error
    return Started(handles, ResponseWriter(served.name, engine.text, body, use, bool(chat.logprobs)))


def _prompts(body: ChatRequest | CompletionRequest, engine: Engine, use: ToolUse | None) -> list[Prompt]:
    return [chat_prompt(body, engine.text, use)] if isinstance(body, ChatRequest) else convert.prompts(body)


def _encoded(
    prompts: Sequence[Prompt], body: ChatRequest | CompletionRequest, engine: Engine, name: str, most: int | None
) -> list[list[int]]:
    """The token ids of all prompts, each with room for `most` tokens, which the parameter `name` asks for."""
    context = engine.model_info.context_length
    encoded = encode_all(prompts, isinstance(body, CompletionRequest), engine.text, context)
    convert.check_room(name, most, encoded, context)
    return encoded


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


def submit(
    engine: Engine,
    prompts: Sequence[Prompt],
    body: ChatRequest | CompletionRequest,
    use: ToolUse | None,
    tenant: str,
) -> list[RequestHandle]:
    """Start the samples of all prompts, or none of them."""
    handles: list[RequestHandle] = []
    sampling, options = convert.sampling(body), replace(convert.options(body, engine, use), tenant=tenant)
    try:
        for prompt in prompts:
            handles += engine.start(prompt, sampling, options)
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    return handles


def _echoes(
    body: ChatRequest | CompletionRequest,
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    engine: Engine,
    n: int,
) -> list[Echo]:
    """What stands before each sample: its prompt, where that was asked for."""
    if isinstance(body, ChatRequest) or not body.echo:
        return [Echo()] * (len(prompts) * n)
    echoes = []
    for prompt, ids in zip(prompts, encoded, strict=True):
        text = prompt if isinstance(prompt, str) else engine.text.decode(ids)
        tokens = [] if body.logprobs is None else ids
        echoes += [Echo(text, tokens, prompt_pieces(engine.text, tokens, text))] * n
    return echoes
