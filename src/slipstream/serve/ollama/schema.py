"""Requests as Ollama's API writes them."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from slipstream.core.sampling import Sampling
from slipstream.engines.base import Engine, GenerationOptions
from slipstream.engines.prompt import Prompt
from slipstream.serve.openai.convert import speculation
from slipstream.serve.openai.schema import ChatRequest, SpeculationOptions
from slipstream.serve.openai.strict import RequestBody, Strict, Text
from slipstream.serve.openai.tool_schema import Tool


class OllamaOptions(Strict):
    """Sampling with Ollama's own defaults."""

    temperature: float = Field(default=0.8, ge=0)
    top_k: int = Field(default=40, ge=0)
    top_p: float = Field(default=0.9, ge=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = None
    num_predict: int = -1  # negative: as many as the context holds
    stop: Text | list[Text] | None = None
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # accepted, and without effect here: how a model is laid out is the server's own matter
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    num_keep: int | None = None
    num_thread: int | None = None
    main_gpu: int | None = None
    use_mmap: bool | None = None


class OllamaRequest(RequestBody):
    model: str
    stream: bool = True
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    speculation: SpeculationOptions | None = None
    keep_alive: str | int | float | None = None  # accepted, and without effect
    think: Literal[False] | None = None

    def sampling(self) -> Sampling:
        own = self.options or OllamaOptions()
        penalties = (own.repeat_penalty, own.presence_penalty, own.frequency_penalty)
        seed = None if own.seed is None or own.seed < 0 else own.seed
        return Sampling(own.temperature, own.top_k, own.top_p, own.min_p, seed, *penalties)

    def generation(self, engine: Engine, raw: bool, tenant: str) -> GenerationOptions:
        own = self.options or OllamaOptions()
        stop = [own.stop] if isinstance(own.stop, str) else own.stop or []
        most = own.num_predict if own.num_predict >= 0 else engine.model_info.context_length
        schema = True if self.format == "json" else self.format or None
        return GenerationOptions(
            max_tokens=most,
            stop=tuple(text for text in stop if text),
            json_schema=schema,
            speculation=speculation(self.speculation),
            raw=raw,
            tenant=tenant,
        )


class OllamaGenerate(OllamaRequest):
    prompt: Text = ""
    system: Text | None = None
    raw: bool = False

    def prompt_or_chat(self) -> Prompt:
        """The text, or a chat where a system message stands before it."""
        if self.raw or not self.system:
            return self.prompt
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.prompt}]


class OllamaFunctionCall(Strict):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None  # clients send it back; the order of the calls says the same


class OllamaToolCall(Strict):
    function: OllamaFunctionCall

    def openai(self) -> dict[str, Any]:
        call = {"name": self.function.name, "arguments": json.dumps(self.function.arguments, ensure_ascii=False)}
        return {"type": "function", "function": call}


class OllamaMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None  # whose answer a message of the role `tool` is

    def openai(self) -> dict[str, Any]:
        calls = [call.openai() for call in self.tool_calls or ()]
        return {"role": self.role, "content": self.content, "name": self.tool_name, "tool_calls": calls or None}


class OllamaChat(OllamaRequest):
    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list)

    def chat(self) -> ChatRequest:
        """The messages and tools as a request of OpenAI's API."""
        constrained = {"type": "json_object"} if self.format else None
        return ChatRequest.model_validate(
            {"messages": [message.openai() for message in self.messages], "tools": self.tools or None}
            | {"response_format": constrained}
        )


class OllamaShow(RequestBody):
    model: str | None = None
    name: str | None = None
    verbose: bool = False
