"""Hostile requests against a live server: each is answered or refused in one sentence, and the server lives on.

The suite tries a few fixed bodies; `make fuzz` tries FUZZ_EXAMPLES random ones, and runs schemathesis where
SLIPSTREAM_SCHEMATHESIS names it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import MODEL, served, status, tool

from slipstream.serve.config import ServerConfig, ServerLimits

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/generate", "/api/chat", "/api/show"]
JSON = {"content-type": "application/json"}

texts = st.sampled_from(["abc", "abcabcab", "", " ", "user", "é\U0001f469", "<end>", "a" * 300, "\0", "\ud800"])
# fmt: off
odd = st.sampled_from([
    None, True, 0, -1, 1, 2**31, 2**63, -(2**70), 1.5, 1e308, 1e-320, float("nan"), float("inf"), "", "1", "\ud83d",
    [], {}, [None], [[]], [3, "a"], {"a": 1}, {"type": "x"}, [{"role": "user"}], [{}],
])
# fmt: on
objects = st.dictionaries(st.sampled_from(["type", "properties", "a", "3", "$ref", "enum"]), odd, max_size=3)


def values(schema: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    """JSON that a schema of the OpenAPI document allows, and now and then something else."""
    good = _valid(schema, parts)
    return st.integers(0, 15).flatmap(lambda pick: odd if pick == 15 else good)


def _valid(schema: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return st.deferred(lambda: _valid(parts[name], parts))
    if "anyOf" in schema or "oneOf" in schema:
        return st.one_of([_valid(inner, parts) for inner in schema.get("anyOf") or schema["oneOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    low, high = schema.get("minimum", -3), schema.get("maximum", 40)
    simple = {
        "string": texts,
        "integer": st.integers(low, min(high, 100)),
        "number": st.floats(low, high),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    if (kind := schema.get("type")) in simple:
        return simple[kind]
    if kind == "array":
        return st.lists(values(schema.get("items", {}), parts), min_size=schema.get("minItems", 0), max_size=3)
    if "properties" not in schema:
        return objects
    fields = {name: values(inner, parts) for name, inner in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as here:
        yield here
        assert status(here) == 200


@pytest.fixture(scope="module")
def schemas(address) -> dict[str, Any]:
    return httpx.get(f"{address}/openapi.json").json()["components"]["schemas"]


BODIES = dict(
    zip(
        PATHS,
        ["ChatRequest", "CompletionRequest", "ResponseRequest", "OllamaGenerate", "OllamaChat", "OllamaShow"],
        strict=True,
    )
)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the server's threads do, not the strategies
@settings(
    max_examples=EXAMPLES or 12,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), path=st.sampled_from(PATHS))
def test_random_bodies(address, schemas, data, path):
    body = data.draw(values(schemas[BODIES[path]], schemas))
    if isinstance(body, dict) and data.draw(st.integers(0, 7)):
        body = {**body, "model": MODEL}
    answer = httpx.post(f"{address}{path}", content=json.dumps(body), headers=JSON, timeout=60)
    assert answer.status_code < 500, answer.text
    assert '"type":"server_error"' not in answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        message = error if path.startswith("/api/") else error["message"]
        assert message.strip()
        assert "\n" not in message


@pytest.mark.parametrize("path", PATHS[:5])
def test_bodies_that_cannot_be_read(address, path):
    for content in (
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"model": "letters", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "\\ud800", "metadata": {"a": "\\udfff"}, "input": "a", "prompt": "a"}',
        b'{"model": "letters", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b"\0" * 1000,
        b"\x1f\x8b\x08",
    ):
        answer = httpx.post(f"{address}{path}", content=content, headers=JSON)
        assert answer.status_code == 400, content[:50]
        error = answer.json()["error"]
        assert "\n" not in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("path", PATHS[:5])
def test_prompts_of_megabytes(address, path):
    for size, expected in ((3_000_000, 400), (10_000_000, 413)):
        text = "a" * size
        body = {"prompt": text, "messages": [{"role": "user", "content": text}], "input": text, "model": MODEL}
        kept = {"completions": "prompt", "generate": "prompt", "responses": "input"}.get(
            path.split("/")[-1], "messages"
        )
        name = "messages" if "chat" in path else kept
        answer = httpx.post(f"{address}{path}", json={"model": MODEL, name: body[name]}, timeout=60)
        assert answer.status_code == expected, answer.text


def test_constraints_that_lead_nowhere(address):
    for constraint in ({"grammar": "root ::= root"}, {"json": {"$ref": "#"}}, {"regex": "[z]"}):
        body = {"prompt": "a", "max_tokens": 4, "structured_outputs": constraint}
        answer = httpx.post(f"{address}/v1/completions", json=body)
        assert answer.status_code == 400, answer.text
        assert "leave nothing to go on with" in answer.json()["error"]["message"]
    body = {"prompt": "a", "max_tokens": 4, "structured_outputs": {"regex": "\ud800"}}
    answer = httpx.post(f"{address}/v1/completions", content=json.dumps(body), headers=JSON)
    assert "not valid Unicode" in answer.json()["error"]["message"]


def test_clients_that_send_slowly():
    with served(ServerConfig(models=(MODEL,), limits=ServerLimits(read_seconds=0.5))) as address:
        host, port = address.removeprefix("http://").split(":")
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        for sent in (b"", b"POST /v1/completions HTTP/1.1\r\nHost:", head, head + b'{"prompt":'):
            with socket.create_connection((host, int(port))) as slow:
                slow.sendall(sent)
                slow.settimeout(20)
                began, answer = time.monotonic(), b""
                while part := slow.recv(4096):
                    answer += part
                assert time.monotonic() - began < 15
                if sent.startswith(head):
                    assert answer.startswith(b"HTTP/1.1 408")
                    assert b"did not arrive within 0.5 seconds" in answer
                else:
                    assert answer == b""
        with httpx.Client(timeout=60) as client:  # one that pauses between requests is served on the same connection
            for _ in range(2):
                body = {"prompt": "a", "max_tokens": 8, "ignore_eos": True}
                assert client.post(f"{address}/v1/completions", json=body).status_code == 200
                time.sleep(0.7)
        assert status(address) == 200


@pytest.mark.slow
def test_schemathesis(address, tmp_path):
    line = [tool("schemathesis", "SLIPSTREAM_SCHEMATHESIS"), "run", f"{address}/openapi.json", "--no-color"]
    line += ["--checks", "not_a_server_error", "--phases", "fuzzing", "--max-examples", str(EXAMPLES // 20 or 20)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout[-3000:]
