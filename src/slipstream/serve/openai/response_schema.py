"""Requests of `/v1/responses`, and the chat that each of them is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from slipstream.serve.errors import ApiError
from slipstream.serve.openai.schema import ChatRequest, SpeculationOptions
from slipstream.serve.openai.strict import RequestBody, Strict, Text
from slipstream.serve.openai.tool_schema import NAME, NamedTool

LOGPROBS = "message.output_text.logprobs"


class InputText(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: list[Any] | None = None  # these two are in what the server itself wrote
    logprobs: list[Any] | None = None


class InputMessage(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[InputText]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        parts = self.content
        return [{"role": self.role, "content": parts if isinstance(parts, str) else "".join(p.text for p in parts)}]


class FunctionCall(Strict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Text
    id: str | None = None
    status: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        call = {"id": self.call_id, "function": {"name": self.name, "arguments": self.arguments}}
        return [{"role": "assistant", "tool_calls": [call]}]


class FunctionCallOutput(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: Text | list[InputText]
    id: str | None = None
    status: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        text = self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)
        return [{"role": "tool", "tool_call_id": self.call_id, "content": text}]


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return str(kind)


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")],
    Discriminator(_kind),
]


class ResponseTool(Strict):
    type: Literal["function"]
    name: str = Field(pattern=NAME)
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseToolName(Strict):
    type: Literal["function"]
    name: str


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    format: TextFormat | None = None


class ResponseRequest(RequestBody):
    """Nothing is stored, so what refers to an earlier response is refused."""

    model: str | None = None
    input: Text | list[InputItem] = Field(min_length=1)
    instructions: Text | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    max_output_tokens: int | None = Field(None, ge=0)
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolName | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    speculation: SpeculationOptions | None = None
    truncation: Literal["disabled"] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    # accepted, since clients send them, and without effect here
    store: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def chat(self) -> ChatRequest:
        """The same as a request of chat completions."""
        self._check()
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self._items()
        if self.instructions is not None:
            given.insert(0, {"role": "system", "content": self.instructions})
        logprobs = LOGPROBS in (self.include or ()) or self.top_logprobs is not None
        same = ("model", "temperature", "top_p", "top_k", "min_p", "seed", "parallel_tool_calls", "speculation")
        return ChatRequest.model_validate(
            {name: getattr(self, name) for name in same}
            | {"messages": given, "max_tokens": self.max_output_tokens, "stream": self.stream}
            | {"logprobs": logprobs, "top_logprobs": self.top_logprobs, "response_format": self._format()}
            | {"tools": self._tools(), "tool_choice": self._choice()}
        )

    def _check(self) -> None:
        if self.previous_response_id is not None:
            sentence = (
                "previous_response_id is not offered, since nothing is stored; send the whole conversation as input"
            )
            raise ApiError(400, sentence, "previous_response_id")
        if self.background:
            raise ApiError(400, "background is not offered; leave it out, and stream", "background")
        for name in self.include or ():
            if name != LOGPROBS:
                raise ApiError(400, f"include has {name!r}; {LOGPROBS} is all that can be included", "include")

    def _items(self) -> list[dict[str, Any]]:
        """All messages. Calls that follow one another are one message."""
        messages: list[dict[str, Any]] = []
        for item in self.input:
            assert not isinstance(item, str), "it was checked"
            for message in item.messages():
                if "tool_calls" in message and messages and "tool_calls" in messages[-1]:
                    messages[-1]["tool_calls"] += message["tool_calls"]
                else:
                    messages.append(message)
        return messages

    def _format(self) -> dict[str, Any] | None:
        form = self.text.format if self.text else None
        if form is None or form.type != "json_schema":
            return None if form is None else {"type": form.type}
        if form.schema_ is None:
            raise ApiError(400, "text.format of type json_schema needs a schema", "text")
        return {"type": form.type, "json_schema": {"name": form.name, "schema": form.schema_}}

    def _tools(self) -> list[dict[str, Any]] | None:
        plain = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in self.tools or ()]
        return [{"type": "function", "function": function} for function in plain] or None

    def _choice(self) -> Any:
        choice = self.tool_choice
        if isinstance(choice, ResponseToolName):
            return NamedTool.model_validate({"type": "function", "function": {"name": choice.name}})
        return choice
