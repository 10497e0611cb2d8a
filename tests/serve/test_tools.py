"""Tool calls with OpenAI's own client, against a live server on a tiny model of bytes."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from live import served

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Paris", "Rome"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
TIME = '<tool_call>{"name": "time"}</tool_call>'
ASKED = [{"role": "user", "content": "How is it?"}]


def ask(client, **more):
    return client.chat.completions.create(model="letters", messages=ASKED, tools=TOOLS, max_tokens=300, **more)


def gather(events) -> tuple[str, list[dict], str]:
    """The content, the calls and the finish reason of a stream."""
    content, calls, reason = "", [], None
    for event in events:
        for choice in event.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                assert call.index == len(calls)
                calls.append(call.function.model_dump())
    return content, calls, reason


def test_a_call_whole_and_streamed(client, engine):
    engine.script = f"I look.\n{WEATHER}\n{TIME}"
    (choice,) = ask(client).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "time"]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Rome", "days": 2}
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert '"name": "weather"' in engine.prompts[-1]
    content, calls, reason = gather(ask(client, stream=True))
    assert (content, reason) == ("I look.", "tool_calls")
    assert calls == [call.function.model_dump() for call in choice.message.tool_calls]


def test_no_call(client, engine):
    engine.script = "It is <b>fine</b>."
    (choice,) = ask(client).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (engine.script, None, "stop")
    assert gather(ask(client, stream=True)) == (engine.script, [], "stop")


def test_one_call_only(client, engine):
    engine.script = TIME + WEATHER
    answer = ask(client, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "time"
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens < 1.2 * len(TIME), "nothing is written after the first call"


def test_none_keeps_the_tools_out_of_the_prompt(client, engine):
    engine.script = TIME
    (choice,) = ask(client, tool_choice="none").choices
    assert (choice.message.content, choice.message.tool_calls) == (TIME, None)
    assert "weather" not in engine.prompts[-1]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_required_is_valid(client, engine, choice):
    how = {"tool_choice": choice, "temperature": 1.5, "seed": 1}
    answer = ask(client, **how).choices[0]
    (call,) = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert answer.finish_reason == "tool_calls"
    if call.function.name == "weather":
        assert arguments["city"] in ("Paris", "Rome")
        assert arguments["days"] in (1, 2, 3)
    else:
        assert (call.function.name, choice) == ("time", "required")
    assert engine.prompts[-1].endswith("<|im_start|>assistant\n<tool_call>\n")
    assert gather(ask(client, stream=True, **how)) == ("", [call.function.model_dump()], "tool_calls")


def test_a_call_that_was_cut_off_is_content(client):
    answer = client.chat.completions.create(
        model="letters", messages=ASKED, tools=TOOLS, tool_choice="required", max_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content.startswith("{")


def test_calls_and_their_results_in_messages(client, engine):
    engine.script = WEATHER
    answer = ask(client).choices[0].message
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "sunny"}
    engine.script = "It is sunny."
    done = client.chat.completions.create(
        model="letters", messages=[*ASKED, answer, result], tools=TOOLS, max_tokens=50
    )
    assert done.choices[0].message.content == "It is sunny."
    assert WEATHER in engine.prompts[-1]
    assert "<|im_start|>tool\nsunny" in engine.prompts[-1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tools": None, "tool_choice": "required"}, "there are no tools to call"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "no tool 'x' to choose; one of weather"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools have the same name"),
        ({"response_format": {"type": "json_object"}}, "a text that is constrained cannot call tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": 5}}}],
             "tool_choice": "required"},
            "no JSON schema",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]}, "JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(address, more, said):
    body = {"messages": ASKED, "tools": TOOLS, "max_tokens": 5} | more
    answer = httpx.post(f"{address}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert re.search(said, answer.json()["error"]["message"]), answer.text


def test_a_template_without_tools_says_so():
    with served() as address:
        for body in ({"messages": ASKED, "tools": TOOLS}, {"messages": [*ASKED, {"role": "tool", "content": "x"}]}):
            answer = httpx.post(f"{address}/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert "the chat template of this model has no tools" in answer.json()["error"]["message"]


def test_calls_through_ollamas_api(address, engine):
    engine.script = 'Hm. <tool_call>{"name": "time", "arguments": {"hour": 2}}</tool_call>'
    body = {"model": "letters", "messages": ASKED, "tools": TOOLS, "options": {"num_predict": 100}}
    whole = httpx.post(f"{address}/api/chat", json=body | {"stream": False}).json()
    lines = [json.loads(line) for line in httpx.post(f"{address}/api/chat", json=body).text.splitlines()]
    calls = [{"name": "time", "arguments": {"hour": 2}}]
    assert whole["message"]["content"] == "".join(line["message"]["content"] for line in lines) == "Hm."
    assert [call["function"] for call in whole["message"]["tool_calls"]] == calls
    assert [call["function"] for line in lines for call in line["message"].get("tool_calls", ())] == calls
    engine.script = "Sun."
    answers = [{"role": "tool", "content": "sunny", "tool_name": "time"}]
    again = httpx.post(
        f"{address}/api/chat", json=body | {"messages": [*ASKED, whole["message"], *answers], "stream": False}
    ).json()
    assert again["message"] == {"role": "assistant", "content": "Sun."}
    assert '{"name": "time", "arguments": {"hour": 2}}' in engine.prompts[-1]
    assert "<|im_start|>tool\nsunny" in engine.prompts[-1]
    assert httpx.post(f"{address}/api/show", json={"model": "letters"}).json()["capabilities"] == [
        "completion",
        "tools",
    ]
