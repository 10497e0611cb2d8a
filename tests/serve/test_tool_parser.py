"""Tool calls in texts, whole and in pieces of any size."""

from __future__ import annotations

import json

import pytest

from slipstream.serve.openai.tool_parser import BARE, HERMES, LLAMA, ToolCallParser, ToolFormat, format_of

CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
ROME = ("weather", {"city": "Rome"})


def parse(text: str, form: ToolFormat = HERMES, size: int | None = None, forced: bool = False):
    parser = ToolCallParser(form, {"weather", "time"}, forced)
    parts = [text] if size is None else [text[i : i + size] for i in range(0, len(text), size)]
    said = [parser.feed(part) for part in parts] + [parser.feed("", last=True)]
    calls = [(said_.earlier + i, call) for said_ in said for i, call in enumerate(said_.calls)]
    assert [index for index, _ in calls] == list(range(len(calls)))
    return "".join(part.content for part in said), [(call.name, json.loads(call.arguments)) for _, call in calls]


@pytest.mark.parametrize("size", [None, 1, 3, 7])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no call at all. ", "no call at all. ", []),
        ("a < b <tool", "a < b <tool", []),
        (f"<tool_call>\n{CALL}\n</tool_call>", "", [ROME]),
        (f"\n\n<tool_call>{CALL}</tool_call>\n", "", [ROME]),
        (f"Let me see.\n<tool_call>{CALL}</tool_call>", "Let me see.", [ROME]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [ROME, ROME]),
        (f"<tool_call>[{CALL}, {CALL}]</tool_call>", "", [ROME, ROME]),
        (f"<tool_call>{CALL}</tool_call> done", " done", [ROME]),
        (f"<tool_call>{CALL}", "", [ROME]),
        ("<tool_call>{broken</tool_call> so", "<tool_call>{broken</tool_call> so", []),
        ('<tool_call>{"name": "nobody"}</tool_call>', '<tool_call>{"name": "nobody"}</tool_call>', []),
        ('<tool_call>{"name": "time"}</tool_call>', "", [("time", {})]),
        ('<tool_call>{"name": "time", "arguments": 5}</tool_call>', None, []),
        (
            '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
            "",
            [("weather", {"city": "</tool_call>"})],
        ),
        (f'<tool_call>{{"x": 1}}</tool_call><tool_call>{CALL}</tool_call>', '<tool_call>{"x": 1}</tool_call>', [ROME]),
    ],
)
def test_calls_between_tags(text, content, calls, size):
    assert parse(text, size=size) == (text if content is None else content, calls)


@pytest.mark.parametrize("size", [None, 1, 4])
def test_calls_without_tags(size):
    llama = '{"name": "weather", "parameters": {"city": "Rome"}}'
    assert parse(llama, LLAMA, size) == ("", [ROME])
    assert parse(f" [{CALL}]", BARE, size) == ("", [ROME])
    assert parse("{not json", BARE, size) == ("{not json", [])
    assert parse(f"It is {CALL}", BARE, size) == (f"It is {CALL}", [])


@pytest.mark.parametrize("size", [None, 2])
def test_a_forced_call_is_the_whole_text(size):
    assert parse(CALL, HERMES, size, forced=True) == ("", [ROME])
    assert parse(CALL[:-3], HERMES, size, forced=True) == (CALL[:-3], [])


def test_the_format_is_the_templates():
    assert format_of("… <tool_call></tool_call> …") is HERMES
    assert format_of('Respond in the format {"name": function name, "parameters": dictionary …}') is LLAMA
    assert format_of("{{ tools }}") is BARE
