"""Finds tool calls in a text while it comes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes calls: JSON between tags, or JSON as the whole text where there are no tags."""

    begin: str = ""
    end: str = ""
    arguments: str = "arguments"  # the key of the arguments


HERMES = ToolFormat("<tool_call>", "</tool_call>")  # Hermes, Qwen, SmolLM
LLAMA = ToolFormat(arguments="parameters")  # Llama 3
BARE = ToolFormat()


def format_of(template: str) -> ToolFormat:
    """The format that a chat template describes."""
    if HERMES.begin in template:
        return HERMES
    return LLAMA if '"name": function name, "parameters"' in template else BARE


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # JSON
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def written(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class Said:
    """A part of a text: content for the user, and calls. `earlier` calls came in the parts before."""

    content: str
    calls: Sequence[ToolCall] = ()
    earlier: int = 0

    @property
    def called(self) -> bool:
        return bool(self.earlier or self.calls)


class ToolCallParser:
    """Separates content and calls. Text that may belong to a call is held back. What is no valid call of a known tool
    is content. Spaces around calls are dropped."""

    def __init__(self, form: ToolFormat, names: Collection[str], forced: bool = False) -> None:
        """`forced`: the text is one call and nothing else, without tags."""
        self._names, self._begin, self._end = names, form.begin, form.end
        if forced:
            self._begin = self._end = ""
        self._inside = forced
        self._undecided = not form.begin and not forced  # whether the text is a call shows in its first character
        self._held, self._spaces = "", ""
        self._calls = 0

    def feed(self, text: str, last: bool = False) -> Said:
        """Read the next part of the text; `last`: no more follows."""
        self._held += text
        content, calls, before = list[str](), list[ToolCall](), (-1, False)
        while before != (before := (len(self._held), self._inside)):
            if self._inside:
                self._read_call(content, calls, last)
            else:
                self._read_content(content)
        if last:
            content.append(self._held)
            self._held = ""
        earlier, self._calls = self._calls, self._calls + len(calls)
        return Said(self._trim("".join(content), last), calls, earlier)

    def _read_content(self, content: list[str]) -> None:
        """Move text up to the next tag to the content. The beginning of a tag stays."""
        if self._undecided and (start := self._held.lstrip()):
            self._undecided, self._inside = False, start[0] in "{["
        if self._undecided or self._inside:
            return
        begin = self._begin
        at = self._held.find(begin) if begin else -1
        if at >= 0:
            content.append(self._held[:at])
            self._held, self._inside = self._held[at + len(begin) :], True
            return
        kept = next((n for n in range(len(begin) - 1, 0, -1) if self._held.endswith(begin[:n])), 0)
        cut = len(self._held) - kept
        content.append(self._held[:cut])
        self._held = self._held[cut:]

    def _read_call(self, content: list[str], calls: list[ToolCall], last: bool) -> None:
        """Read a call once its end is there. At the end of the text a call needs no tag."""
        at = self._call_end()
        if at is None and not last:
            return
        body, tag = (self._held, "") if at is None else (self._held[:at], self._end)
        found = self._parse(body)
        if found is None:
            content.append(self._begin + body + tag)
        calls += found or []
        self._held, self._inside = self._held[len(body) + len(tag) :], False

    def _call_end(self) -> int | None:
        """Where the call that is held ends; a tag inside of a JSON string does not end it."""
        at = self._held.find(self._end) if self._end else -1
        while at >= 0 and _within_string(self._held[:at]):
            at = self._held.find(self._end, at + 1)
        return at if at >= 0 else None

    def _parse(self, text: str) -> list[ToolCall] | None:
        """One call or a list of calls; None where it is neither."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        calls = []
        for call in value if isinstance(value, list) else [value]:
            if not isinstance(call, dict) or call.get("name") not in self._names:
                return None
            arguments = call.get("arguments", call.get("parameters", {}))
            if not isinstance(arguments, dict):
                return None
            calls.append(ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False)))
        return calls or None

    def _trim(self, content: str, last: bool) -> str:
        content = self._spaces + content
        kept = content.rstrip()
        self._spaces = content[len(kept) :]
        return content if last and not self._calls else kept


def _within_string(text: str) -> bool:
    """Whether JSON breaks off within a string."""
    try:
        json.loads(text)
    except ValueError as error:
        return str(error).startswith("Unterminated string")
    except RecursionError:
        return False
    return False
