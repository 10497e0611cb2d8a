"""Ollama's API with its own client, where that is installed, and by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from live import MODEL, served


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as here:
        yield here


COLD = {"temperature": 0, "num_predict": 12}


def lines(address: str, path: str, body: dict) -> list[dict]:
    with httpx.stream("POST", f"{address}{path}", json=body) as response:
        assert response.status_code == 200
        return [json.loads(line) for line in response.iter_lines()]


def test_generate_streams_what_it_says_whole(address):
    body = {"model": MODEL, "prompt": "abcabc", "raw": True, "options": COLD}
    parts = lines(address, "/api/generate", body)
    whole = httpx.post(f"{address}/api/generate", json=body | {"stream": False}).json()
    assert "".join(part["response"] for part in parts) == whole["response"]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["eval_count"] == whole["eval_count"] <= 12
    assert parts[-1]["prompt_eval_count"] == 6
    assert whole["total_duration"] >= whole["eval_duration"] >= 0
    same = httpx.post(f"{address}/v1/completions", json={"prompt": "abcabc", "temperature": 0, "max_tokens": 12}).json()
    assert same["choices"][0]["text"] == whole["response"]


def test_chat_and_names_with_a_tag(address):
    messages = [{"role": "user", "content": "abc"}]
    body = {"model": f"{MODEL}:latest", "messages": messages, "options": COLD | {"seed": 3, "temperature": 0.7}}
    texts = ["".join(part["message"]["content"] for part in lines(address, "/api/chat", body)) for _ in range(2)]
    assert texts[0] == texts[1]


def test_what_is_wrong_is_said_in_ollamas_shape(address):
    for body, said in (
        ({"model": MODEL, "prompt": "a", "options": {"mirostat": 1}}, "there is no parameter 'mirostat'"),
        ({"prompt": "a"}, "model is missing"),
        ({"model": MODEL, "prompt": "a", "options": {"top_p": 2}}, "options.top_p"),
    ):
        answer = httpx.post(f"{address}/api/generate", json=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]
    assert httpx.post(f"{address}/api/chat", json={"model": "nobody", "messages": []}).status_code == 400
    unknown = httpx.post(f"{address}/api/generate", json={"model": "nobody", "prompt": "a"})
    assert (unknown.status_code, unknown.json()["error"]) == (404, "there is no model 'nobody'; one of letters")


def test_models_and_version(address):
    (model,) = httpx.get(f"{address}/api/tags").json()["models"]
    assert model["name"] == MODEL
    assert httpx.get(f"{address}/api/ps").json()["models"] == [model]
    assert httpx.post(f"{address}/api/show", json={"model": MODEL}).json()["capabilities"] == ["completion"]
    assert httpx.get(f"{address}/api/version").json()["version"]


def test_ollamas_own_client(address):
    ollama = pytest.importorskip("ollama", reason="needs Ollama's client (pip install ollama)")
    client = ollama.Client(host=address)
    assert [model.model for model in client.list().models] == [MODEL]
    whole = client.generate(MODEL, "abcabc", raw=True, options=COLD)
    streamed = "".join(part.response for part in client.generate(MODEL, "abcabc", raw=True, options=COLD, stream=True))
    assert whole.response == streamed
    answer = client.chat(MODEL, [{"role": "user", "content": "abc"}], options=COLD)
    assert answer.message.role == "assistant"
    with pytest.raises(ollama.ResponseError, match="there is no model 'nobody'"):
        client.generate("nobody", "a")
    client._client.close()


def test_a_temperature_beyond_float32_is_refused(address):
    """It is infinite in float32, and masked logits divided by it are no numbers."""
    for options in ({"temperature": 1e65}, {"temperature": 3.5e38}):
        body = {"model": "letters", "prompt": "ab", "stream": False, "format": "json", "options": options}
        answer = httpx.post(f"{address}/api/generate", json=body)
        assert answer.status_code == 400
        assert "it must be 0 (greedy) or a positive number up to 3.4e+38" in answer.json()["error"]
