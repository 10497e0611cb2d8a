"""From a request of the API to what the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.core.sampling import Sampling
from slipstream.engines.base import Engine, GenerationOptions, Speculation
from slipstream.engines.prompt import Prompt
from slipstream.serve.errors import ApiError
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest, GenerationRequest, SpeculationOptions
from slipstream.serve.openai.tools import ToolUse

COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions


def sampling(request: GenerationRequest) -> Sampling:
    given: dict[str, Any] = {
        "temperature": request.temperature,
        "top_k": None if request.top_k == -1 else request.top_k,  # vLLM's way to say: no limit
        "top_p": request.top_p,
        "min_p": request.min_p,
        "seed": None if request.seed is None else request.seed % 2**63,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": _bias(request.logit_bias),
        "allowed_token_ids": request.allowed_token_ids,
    }
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def options(request: ChatRequest | CompletionRequest, engine: Engine, use: ToolUse | None = None) -> GenerationOptions:
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    tools = (use.stop, use.constraint) if use else ((), {})
    return GenerationOptions(
        max_tokens=max_tokens(request, engine),
        min_tokens=request.min_tokens or 0,
        stop=(*(text for text in stop if text), *tools[0]),
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        logprobs=logprobs(request),
        prompt_logprobs=prompt_logprobs(request),
        n=request.n or 1,
        speculation=speculation(request.speculation),
        raw=isinstance(request, CompletionRequest),
        prediction=request.prediction.text if isinstance(request, ChatRequest) and request.prediction else None,
        **(tools[1] or constraint(request)),
    )


def logprobs(request: GenerationRequest) -> int | None:
    if isinstance(request, ChatRequest):
        if request.top_logprobs and not request.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
        return (request.top_logprobs or 0) if request.logprobs else None
    return request.logprobs if isinstance(request, CompletionRequest) else None


def prompt_logprobs(request: GenerationRequest) -> int | None:
    """Of the prompt as vLLM writes them, and with `echo` as OpenAI does: the larger number of alternatives."""
    echoed = request.logprobs if isinstance(request, CompletionRequest) and request.echo else None
    wanted = [count for count in (request.prompt_logprobs, echoed) if count is not None]
    return max(wanted, default=None)


def speculation(asked: SpeculationOptions | None) -> Speculation:
    if asked is None:
        return Speculation()
    return Speculation(asked.off, asked.drafter, asked.depth, asked.rule, asked.shape, asked.history)


def constraint(request: GenerationRequest) -> dict[str, Any]:
    """The grammar, schema or regular expression that the text has to match."""
    form, structured = request.response_format, request.structured_outputs
    if form is not None and form.type != "text":
        if structured is not None:
            raise ApiError(
                400, "response_format and structured_outputs are given; a text is constrained by one of them"
            )
        if form.type == "json_object":
            return {"json_schema": True}
        if form.json_schema is None:
            raise ApiError(
                400, "response_format of type json_schema needs json_schema with a schema", "response_format"
            )
        return {"json_schema": form.json_schema.schema_}
    if structured is None:
        return {}
    given = {"json_schema": structured.json_, "regex": structured.regex, "grammar": structured.grammar}
    return {name: value for name, value in given.items() if value is not None}


def max_tokens(request: ChatRequest | CompletionRequest, engine: Engine) -> int:
    """As many as were asked for; else OpenAI's default of a text, and of a chat what the context has room for."""
    _, given = asked_tokens(request)
    if given is not None:
        return given
    return engine.model_info.context_length if isinstance(request, ChatRequest) else COMPLETION_TOKENS


def asked_tokens(request: ChatRequest | CompletionRequest) -> tuple[str, int | None]:
    """The parameter that limits the tokens of an answer, and its value; None where it was left out."""
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return "max_completion_tokens", request.max_completion_tokens
    return "max_tokens", request.max_tokens


def check_room(name: str, given: int | None, prompts: Sequence[Sequence[int]], context: int) -> None:
    """Refuse more tokens than the context has room for, as vLLM does. What was not asked for may be cut."""
    longest = max(map(len, prompts))
    if given is not None and longest <= context < longest + given:
        sentence = f"{name} is {given}; the prompt has {longest} tokens and the model's context holds {context}"
        raise ApiError(400, f"{sentence}, so it must be {context - longest} or less", name)


def prompts(request: CompletionRequest) -> list[Prompt]:
    """One text, several texts, the token ids of one prompt, or those of several."""
    given: Any = request.prompt
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def _bias(given: dict[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    try:
        return {int(token): value for token, value in given.items()}
    except ValueError as error:
        raise ApiError(400, f"logit_bias: {error}; its keys are token ids", "logit_bias") from error
