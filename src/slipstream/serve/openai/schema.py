"""Requests as OpenAI's API writes them, with vLLM's additions and `speculation`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from slipstream.serve.openai.strict import RequestBody, Strict, Text
from slipstream.serve.openai.tool_schema import NamedTool, Tool, ToolCallMessage


class SpeculationOptions(Strict):
    """How one request drafts; what is left out is the server's own setting."""

    off: bool = False
    drafter: str | None = None
    depth: int | None = Field(None, ge=0, le=64)
    shape: str | int | None = Field(None, description="A tree: 24 nodes, 4x2x1 by level, -1,-1,0 by parents.")
    rule: str | None = Field(None, description="A verification rule, such as block or coupled.")
    history: bool = Field(True, description="Whether suffix may read and add to earlier outputs of the same API key.")


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None  # there is no padding to leave out


class JsonSchema(Strict):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(True, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """vLLM's names."""

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    grammar: str | None = None


class GenerationRequest(RequestBody):
    """What chat and text completions have in common."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1)
    stop: Text | list[Text] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = Field(None, ge=0)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool = False
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    allowed_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: SpeculationOptions | None = None
    return_token_ids: bool = False
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    # accepted, since clients send them, and without effect here
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ContentPart(Strict):
    type: Literal["text"]
    text: Text


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallMessage] | None = None
    tool_call_id: str | None = None

    @property
    def of_tools(self) -> bool:
        """Whether it calls a tool, or gives the answer of one."""
        return self.role == "tool" or bool(self.tool_calls)

    def plain(self) -> dict[str, Any]:
        """As chat templates take it."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts or [])
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = [call.plain() for call in self.tool_calls]
        if self.role == "tool":
            message |= {"tool_call_id": self.tool_call_id, "name": self.name}
        return message


class PredictedContent(Strict):
    """The text that the answer is likely to repeat, nearly unchanged."""

    type: Literal["content"]
    content: Text | list[ContentPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None


class CompletionRequest(GenerationRequest):
    prompt: Text | list[Text] | list[int] | list[list[int]] = Field(min_length=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None
