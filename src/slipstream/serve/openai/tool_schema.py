"""Tools and tool calls as OpenAI's API writes them."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, field_validator

from slipstream.serve.openai.strict import Strict, Text

NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class FunctionTool(Strict):
    name: str = Field(pattern=NAME)
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of the arguments; without it any.")
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionTool


class FunctionName(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(Strict):
    name: str
    arguments: Text

    @field_validator("arguments")
    @classmethod
    def _object(cls, text: str) -> str:
        try:
            value = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"arguments of a tool call are not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("arguments of a tool call must be a JSON object")
        return text


class ToolCallMessage(Strict):
    """A call in a message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        """As chat templates take it: with the arguments as values, not as text."""
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments or "{}")}
        return {"id": self.id, "type": self.type, "function": function}
