"""`slipstream serve` as a user runs it: the real command, the default model, OpenAI's client."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from live import command

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with command("-d", "eagle") as address:
        yield address


@pytest.mark.model
def test_the_example_of_the_docs(server):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serve.md").read_text(), re.S)
    code = code.replace("http://127.0.0.1:8000", server)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 40


@pytest.mark.model
def test_a_seed_repeats_and_speculation_can_be_turned_off(server):
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "Write a Python function that reverses a string."}]

    def ask(**speculation) -> tuple[str, dict]:
        events = client.chat.completions.create(
            model="smollm2-135m",
            messages=messages,
            seed=7,
            max_tokens=48,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"speculation": speculation},
        )
        text, usage = "", None
        for event in events:
            text += "".join(choice.delta.content or "" for choice in event.choices)
            usage = event.usage or usage
        return text, usage.model_extra["speculation"]

    plain, deep, tree = ask(off=True), ask(depth=4), ask(shape=8)
    assert plain[0] == deep[0] == tree[0]
    assert plain[1]["drafted"] == 0
    assert deep[1]["tau"] > 1.5
    assert deep[1]["lossless"] is True


@pytest.mark.model
def test_the_server_is_ready_and_has_metrics(server):
    assert httpx.get(f"{server}/health").json() == {"status": "ready"}
    assert "spec_decode_num_accepted_tokens_total" in httpx.get(f"{server}/metrics").text
    paths = httpx.get(f"{server}/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= paths.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-model"], "there is no model called 'no-such-model'"),
        (["--api-key-file", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["--engine", "nobody"], "there is no engine called 'nobody'"),
        (["--engine", "transformers", "--tree", "8"], "--tree needs the native engine"),
        (["--host", "256.1.1.1"], "cannot be listened on"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(slipstream, words, said):
    done = slipstream("serve", "--port", "0", *words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
