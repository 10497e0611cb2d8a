"""The same API over the other engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from live import MODEL, served
from typer.testing import CliRunner

import fake_vllm
import letters_folder
from slipstream.cli.app import app
from slipstream.engines.base import Engine
from slipstream.serve import run
from slipstream.serve.config import ServerConfig
from slipstream.serve.models import opener


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return letters_folder.write(tmp_path_factory.mktemp("letters"))


@pytest.fixture(scope="module", params=["transformers", "vllm", "llamacpp"])
def engine(request, folder, tmp_path_factory) -> Iterator[Engine]:
    """Each engine as `slipstream serve --engine NAME MODEL` opens it. vLLM is a stand-in."""
    name, model, words = request.param, str(folder), ["-d", "ngram", "--depth", "2"]
    with pytest.MonkeyPatch.context() as patch:
        if name == "vllm":
            patch.setenv("PYTHONPATH", str(fake_vllm.write(tmp_path_factory.mktemp("vllm"))))
            words += ["-o", f"python={sys.executable}"]
        if name == "llamacpp":
            pytest.importorskip("xllamacpp", reason="needs llama.cpp (pip install slipstream-lm[llamacpp])")
            model = str(folder / "letters.gguf")
        configs = list[ServerConfig]()
        patch.setattr(run, "serve_forever", lambda config, *_: configs.append(config))
        CliRunner().invoke(app, ["serve", model, "--engine", name, *words], catch_exceptions=False)
        with opener(configs[0].engine)(model) as opened:
            yield opened


@pytest.fixture(scope="module")
def address(engine) -> Iterator[str]:
    with served(open_model=lambda name: engine) as here:
        yield here


def test_chat_whole_and_streamed(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        how = {"model": MODEL, "messages": [{"role": "user", "content": "abcabc"}], "temperature": 0, "max_tokens": 16}
        whole = client.chat.completions.create(**how)
        events = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert whole.choices[0].message.content == text
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.model_extra["speculation"]["rule"] == "its own"
    assert whole.usage.model_extra["speculation"]["lossless"] is None


def test_requests_at_the_same_time(address):
    def ask(letter: str) -> str:
        body = {"prompt": letter * 4, "temperature": 0, "max_tokens": 8, "stop": ["zz"], "logprobs": 1}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
        (choice,) = answer["choices"]
        assert len(choice["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"]
        return choice["text"]

    texts = list(map(ask, "abcd"))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, "abcd")) == texts


def test_what_the_engine_does_not_offer_is_refused_in_a_sentence(engine, address):
    body = {"prompt": "ab", "speculation": {"rule": "coupled"}}
    answer = httpx.post(f"{address}/v1/completions", json=body)
    assert answer.status_code == 400
    assert engine.name in answer.json()["error"]["message"]


def test_the_page_and_the_metrics_know_the_engine(engine, address):
    about = httpx.get(f"{address}/v1/slipstream").json()
    assert "ngram" in about["drafters"]
    assert (about["rules"], about["joules"]) == (list(engine.capabilities.rules), None)
    assert isinstance(about["logprobs"], bool)
    assert "slipstream:num_requests_running 0.0" in httpx.get(f"{address}/metrics").text
    assert json.dumps(about["stats"])
    assert httpx.get(address).status_code == 200
