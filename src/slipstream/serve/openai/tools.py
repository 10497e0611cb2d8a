"""Tools of a chat: what the prompt says of them, and how calls are made certain where they are required."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.models.text.codec import TextCodec
from slipstream.serve.errors import ApiError
from slipstream.serve.openai.schema import ChatRequest
from slipstream.serve.openai.tool_parser import ToolCallParser, ToolFormat, format_of
from slipstream.serve.openai.tool_schema import FunctionTool, NamedTool


@dataclass(frozen=True)
class ToolUse:
    """The tools that a request may call. `forced`: its text is one call, constrained by a grammar."""

    functions: Sequence[FunctionTool]
    form: ToolFormat
    forced: bool
    parallel: bool

    def parser(self) -> ToolCallParser:
        return ToolCallParser(self.form, {function.name for function in self.functions}, self.forced)

    @property
    def begin(self) -> str:
        """How the answer begins, as a part of the prompt."""
        return f"{self.form.begin}\n" if self.forced and self.form.begin else ""

    @property
    def stop(self) -> tuple[str, ...]:
        """Where the text ends besides: after the first call, where only one is wanted."""
        return (self.form.end,) if self.form.end and not self.parallel and not self.forced else ()

    @property
    def constraint(self) -> dict[str, Any]:
        return {"grammar": call_grammar(self.functions, self.form.arguments)} if self.forced else {}


def tool_use(request: ChatRequest, text: TextCodec) -> ToolUse | None:
    """The tools of a request, checked; None where it can call none."""
    choice = request.tool_choice or "auto"
    if not request.tools:
        if isinstance(choice, NamedTool) or choice == "required":
            raise ApiError(400, "tool_choice asks for a call, and there are no tools to call", "tool_choice")
        _check_template(text, any(message.of_tools for message in request.messages), "messages")
        return None
    _check_template(text, True, "tools")
    if choice == "none":
        return None
    if request.structured_outputs or (request.response_format and request.response_format.type != "text"):
        raise ApiError(
            400, "a text that is constrained cannot call tools; leave out tools, or set tool_choice to none", "tools"
        )
    functions = [tool.function for tool in request.tools]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise ApiError(400, "two tools have the same name; give each its own", "tools")
    if isinstance(choice, NamedTool):
        functions = [function for function in functions if function.name == choice.function.name]
        if not functions:
            wanted = choice.function.name
            raise ApiError(400, f"there is no tool {wanted!r} to choose; one of {', '.join(names)}", "tool_choice")
    forced = choice != "auto"
    return ToolUse(functions, format_of(text.tool_template or ""), forced, request.parallel_tool_calls is not False)


def _check_template(text: TextCodec, needed: bool, param: str) -> None:
    if needed and text.tool_template is None:
        raise ApiError(
            400, "the chat template of this model has no tools; use a model that was trained for them", param
        )


def chat_prompt(request: ChatRequest, text: TextCodec, use: ToolUse | None) -> list[int] | list[dict[str, Any]]:
    """The messages; as token ids where the chat template is told of tools."""
    messages = [message.plain() for message in request.messages]
    if use is None:
        return messages
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    return text.encode(messages, tools=tools, begin=use.begin)


def call_grammar(functions: Sequence[FunctionTool], key: str) -> str:
    """EBNF of one call of one of these functions, as JSON with single spaces, which is what models are trained on."""
    try:
        import xgrammar
    except ImportError as error:
        raise ValueError("tool calls that are required need xgrammar; pip install slipstream-lm[grammar]") from error
    kinds, definitions = [], dict[str, Any]()
    for function in functions:
        path = f"#/$defs/{function.name}"
        definitions[function.name] = _moved(function.parameters or {"type": "object"}, path)
        properties = {"name": {"const": function.name}, key: {"$ref": path}}
        kinds.append(
            {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False}
        )
    schema = {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), "$defs": definitions}
    try:
        return str(xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False))
    except RuntimeError as error:
        raise ValueError(f"the parameters of a tool are no JSON schema: {' '.join(str(error).split())}") from error


def _moved(schema: Any, path: str) -> Any:
    """A schema whose references still hold where it becomes a part of another one at `path`."""
    if isinstance(schema, Mapping):
        return {
            key: path + value.removeprefix("#") if key == "$ref" and _local(value) else _moved(value, path)
            for key, value in schema.items()
        }
    return [_moved(value, path) for value in schema] if isinstance(schema, list) else schema


def _local(reference: Any) -> bool:
    return isinstance(reference, str) and reference.startswith("#")
