"""`/v1/responses` with OpenAI's own client, against a live server on a tiny model of bytes."""

from __future__ import annotations

import json
import re

import httpx
import pytest

CALL = '<tool_call>{"name": "time", "arguments": {"zone": "UTC"}}</tool_call>'
ZONES = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
TOOLS = [{"type": "function", "name": "time", "parameters": ZONES}]
HOW = {"model": "letters", "max_output_tokens": 120}


def test_a_text_whole_and_streamed(client, engine):
    engine.script = "It is late."
    done = client.responses.create(input="What time?", instructions="Be brief.", **HOW)
    assert (done.status, done.output_text) == ("completed", "It is late.")
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert done.usage.output_tokens == len("It is late.") + 1
    assert "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat time?" in engine.prompts[-1]
    events = list(client.responses.create(input="What time?", stream=True, **HOW))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events if event.type.endswith("delta")) == "It is late."
    assert events[-1].response.output_text == "It is late."
    with client.responses.stream(input="What time?", **HOW) as stream:
        assert stream.get_final_response().output_text == "It is late."


def test_a_text_that_is_cut_off(client, engine):
    engine.script = "It is late."
    how = HOW | {"max_output_tokens": 5}
    done = client.responses.create(input="What time?", **how)
    assert (done.status, done.incomplete_details.reason, done.output_text) == (
        "incomplete",
        "max_output_tokens",
        "It is",
    )
    *_, last = client.responses.create(input="What time?", stream=True, **how)
    assert (last.type, last.response.output_text) == ("response.incomplete", "It is")


def test_logprobs(client, engine):
    engine.script = "ab"
    done = client.responses.create(input="a", include=["message.output_text.logprobs"], top_logprobs=1, **HOW)
    entries = done.output[0].content[0].logprobs
    assert [entry.token for entry in entries[:2]] == ["a", "b"]
    assert all(len(entry.top_logprobs) == 1 for entry in entries)


def test_calls_and_their_outputs(client, engine):
    engine.script = f"I look. {CALL}"
    done = client.responses.create(input="What time?", tools=TOOLS, **HOW)
    message, call = done.output
    assert message.content[0].text == "I look."
    assert (call.name, json.loads(call.arguments)) == ("time", {"zone": "UTC"})
    with client.responses.stream(input="What time?", tools=TOOLS, **HOW) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response().output
    assert "response.function_call_arguments.done" in kinds
    assert [(item.type, getattr(item, "arguments", None)) for item in streamed] == [
        ("message", None),
        ("function_call", call.arguments),
    ]
    engine.script = "Noon."
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}
    asked = [{"role": "user", "content": "What time?"}, *done.output, result]
    assert client.responses.create(input=asked, tools=TOOLS, **HOW).output_text == "Noon."
    assert "<|im_start|>tool\n12:00" in engine.prompts[-1]


def test_what_is_required_is_valid(client):
    choice = {"type": "function", "name": "time"}
    (call,) = client.responses.create(input="a", tools=TOOLS, tool_choice=choice, **HOW).output
    assert json.loads(call.arguments)["zone"] in ("UTC", "CET")
    form = {"type": "json_schema", "name": "zone", "schema": {"enum": ["UTC", "CET"]}}
    done = client.responses.create(input="a", text={"format": form}, **HOW)
    assert json.loads(done.output_text) in ("UTC", "CET")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "input is missing"),
        ({"input": "a", "previous_response_id": "resp_1"}, "nothing is stored; send the whole conversation"),
        ({"input": "a", "background": True}, "background is not offered"),
        ({"input": "a", "include": ["file_search_call.results"]}, "all that can be included"),
        ({"input": "a", "reasoning": {"effort": "low"}}, "there is no parameter 'reasoning'"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools.0"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "a", "arguments": "{"}]}, "not valid JSON"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "needs a schema"),
    ],
)
def test_what_is_not_offered_is_named(address, body, said):
    answer = httpx.post(f"{address}/v1/responses", json=body)
    assert answer.status_code == 400
    assert re.search(said, answer.json()["error"]["message"]), answer.text
