"""The same API over another engine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from live import MODEL, served

import letters
from slipstream.engines import open_engine


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(folder)
    letters.tokenizer().save_pretrained(folder)
    with served(open_model=lambda name: open_engine("transformers", str(folder), "ngram")) as here:
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


def test_what_the_engine_does_not_offer_is_refused_in_a_sentence(address):
    body = {"prompt": "ab", "speculation": {"rule": "block"}}
    answer = httpx.post(f"{address}/v1/completions", json=body)
    assert answer.status_code == 400
    assert "transformers" in answer.json()["error"]["message"]


def test_the_page_and_the_metrics_know_the_engine(address):
    about = httpx.get(f"{address}/v1/slipstream").json()
    assert about["drafters"] == ["ngram", "early_exit"]
    assert (about["rules"], about["joules"]) == ([], None)
    assert isinstance(about["logprobs"], bool)
    assert "slipstream:num_requests_running 0.0" in httpx.get(f"{address}/metrics").text
    assert json.dumps(about["stats"])
    assert httpx.get(address).status_code == 200
