"""The server's API with OpenAI's own client, against a live server on a model of letters."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest
import torch
from live import MODEL, served, status, wait_until

import letters
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines.base import Chunk, Logprob
from slipstream.engines.completion import DraftedTree
from slipstream.engines.native.engine import NativeEngine
from slipstream.serve.config import ServerConfig, ServerLimits
from slipstream.serve.openai.answers import Answer
from slipstream.serve.openai.tool_parser import Said
from slipstream.serve.run import bind


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as here:
        yield here


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


class Tokenless:
    """A text codec that writes tokens as their ids."""

    def decode(self, ids) -> str:
        return "".join(f"<{token}>" for token in ids)


def engine_text(prompt, sampling: Sampling, **options) -> str:
    with NativeEngine(letters.target(), "ngram") as engine:
        (done,) = engine.generate(prompt, sampling, **options)
    return done.text


def test_a_completion_is_the_engines_own(client):
    done = client.completions.create(model=MODEL, prompt="abcabc", max_tokens=12, temperature=0)
    assert done.choices[0].text == engine_text("abcabc", Sampling(0), max_tokens=12, raw=True)
    assert done.choices[0].finish_reason in ("length", "stop")
    assert done.usage.prompt_tokens == 6
    assert done.usage.completion_tokens == 12
    assert done.usage.total_tokens == 18
    assert done.usage.model_extra["speculation"]["lossless"] is True


def test_a_seed_repeats_whole_and_streamed(client):
    how = {"model": MODEL, "messages": [{"role": "user", "content": "abc"}], "temperature": 0.9, "seed": 7}
    how |= {"max_tokens": 24}
    whole = client.chat.completions.create(**how)
    again = client.chat.completions.create(**how)
    events = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert whole.choices[0].message.content == again.choices[0].message.content == text
    assert events[-1].usage.total_tokens == whole.usage.total_tokens
    assert events[0].choices[0].delta.role == "assistant"
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == whole.choices[0].finish_reason
    assert whole.usage.model_extra["speculation"]["rule"] == "coupled"


def test_a_prediction_is_drafted_from_and_counted(client):
    how = {"model": MODEL, "messages": [{"role": "user", "content": "abc"}], "temperature": 0, "max_tokens": 24}
    how |= {"extra_body": {"speculation": {"depth": 4}}, "logit_bias": {"0": -100, "1": -100, "2": -100}}
    plain = client.chat.completions.create(**how)
    text = plain.choices[0].message.content
    for content in (text, [{"type": "text", "text": text[:5]}, {"type": "text", "text": text[5:]}]):
        done = client.chat.completions.create(**how, prediction={"type": "content", "content": content})
        assert done.choices[0].message.content == text
        assert done.usage.completion_tokens_details.accepted_prediction_tokens >= 15
        assert done.usage.completion_tokens_details.rejected_prediction_tokens == 0
    assert plain.usage.completion_tokens_details is None
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(**how, prediction={"type": "content", "content": 5})
    with pytest.raises(openai.BadRequestError, match=r"the prediction has .* tokens; the model's context holds"):
        client.chat.completions.create(**how, prediction={"type": "content", "content": "ab" * 4000})


def test_several_prompts_and_samples(client):
    how = {"model": MODEL, "prompt": ["ab", "cd"], "n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 8}
    whole = client.completions.create(**how)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage.prompt_tokens == 4
    texts = dict.fromkeys(range(4), "")
    for event in client.completions.create(**how, stream=True):
        for choice in event.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in whole.choices]


def test_logprobs_of_chat_and_text(client):
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "ab"}], max_tokens=4, temperature=0, logprobs=True,
        top_logprobs=2,
    )  # fmt: skip
    entries = chat.choices[0].logprobs.content
    assert len(entries) == chat.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
    text = client.completions.create(model=MODEL, prompt="ab", max_tokens=4, temperature=0, logprobs=1)
    assert len(text.choices[0].logprobs.token_logprobs) == 4
    offsets = text.choices[0].logprobs.text_offset
    assert (len(offsets), offsets[0], offsets) == (4, 0, sorted(offsets))
    assert offsets[-1] <= len(text.choices[0].text)


def test_logprobs_of_the_prompt(address, client):
    ids = letters.tokenizer().encode("abcab", add_special_tokens=False)
    with torch.inference_mode():
        law = letters.plain()(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = [float(law[i, token]) for i, token in enumerate(ids[1:])]
    for prompt in ("abcab", ids):
        for max_tokens in (0, 3):
            how = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 2}
            (choice,) = client.completions.create(**how, echo=True).choices
            found = choice.logprobs
            assert choice.text.startswith("abcab")
            assert found.tokens == list(choice.text)
            assert found.token_logprobs[:5] == [None, *(pytest.approx(value, abs=1e-4) for value in own)]
            assert found.top_logprobs[0] is None
            assert all(len(top) == 2 for top in found.top_logprobs[1:])
            assert found.text_offset == list(range(5 + max_tokens))
            streamed = [event.choices[0] for event in client.completions.create(**how, echo=True, stream=True)]
            assert "".join(event.text for event in streamed) == choice.text
            joined = [value for event in streamed for value in event.logprobs.token_logprobs]
            assert joined == pytest.approx(found.token_logprobs[:1] + found.token_logprobs[1:], abs=1e-4)
            assert [place for event in streamed for place in event.logprobs.text_offset] == found.text_offset


def test_logprobs_of_the_prompt_in_vllms_form(address):
    body = {"prompt": ["abc", "b"], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    first, second = httpx.post(f"{address}/v1/completions", json=body).json()["choices"]
    assert second["prompt_logprobs"] == [None]
    none, *entries = first["prompt_logprobs"]
    assert none is None
    for token, entry in zip("bc", entries, strict=True):
        values = {value["decoded_token"]: value["logprob"] for value in entry.values()}
        assert max(values.values()) >= values[token]
        assert 1 in [value["rank"] for value in entry.values()]
    chat = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1, "prompt_logprobs": 0}
    answer = httpx.post(f"{address}/v1/chat/completions", json=chat).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    refused = httpx.post(f"{address}/v1/chat/completions", json=chat | {"stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_token_ids_as_a_prompt_and_echo(client):
    ids = letters.tokenizer().encode("abc", add_special_tokens=False)
    by_ids = client.completions.create(model=MODEL, prompt=ids, max_tokens=5, temperature=0)
    by_text = client.completions.create(model=MODEL, prompt="abc", max_tokens=5, temperature=0, echo=True)
    assert by_text.choices[0].text == "abc" + by_ids.choices[0].text


def test_speculation_of_one_request(client):
    def ask(**speculation):
        return client.completions.create(
            model=MODEL, prompt="abcabcabc", max_tokens=16, temperature=0, extra_body={"speculation": speculation}
        )

    off, deep = ask(off=True), ask(depth=3)
    assert off.choices[0].text == deep.choices[0].text
    assert off.usage.model_extra["speculation"]["drafted"] == 0
    assert deep.usage.model_extra["speculation"]["drafted"] > 0


def test_events_tell_where_tokens_came_from(address):
    body = {"prompt": "abcabcabc", "max_tokens": 16, "temperature": 0, "stream": True, "ignore_eos": True}
    body["speculation"] = {"depth": 3}
    origins, text, pieces = [], "", []
    with httpx.stream("POST", f"{address}/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["text"]
                origins += choice.get("slipstream", {}).get("origins", [])
                pieces += choice.get("slipstream", {}).get("pieces", [])
    assert len(origins) == 16
    assert {"accepted"} <= set(origins) <= {"accepted", "recovered", "bonus", "plain"}
    assert "".join(pieces) == text


def test_events_are_the_json_that_their_fields_are():
    """Events are written by hand, so odd texts in all places are checked."""
    text = Tokenless()
    for chat in (True, False):
        answer = Answer('a "model"\n', text, chat, logprobs=1, token_ids=True)
        pieces = ('\u2028"\\', "é\x00\U0001f469")
        entries = tuple(Logprob(token, -0.5, ((token, -0.5),)) for token in (3, 4))
        origins = (Origin.ACCEPTED, Origin.BONUS)
        chunk = Chunk(
            "".join(pieces), (3, 4), origins, entries, "stop", None, pieces, (), DraftedTree((3,), (-1,), (0,))
        )
        event = json.loads(answer.event(1, chunk, Said(chunk.text), 5).removeprefix("data: "))
        (choice,) = event["choices"]
        assert (event["id"][-32:], event["model"], event["created"]) == (answer.id, answer.model, answer.created)
        assert (choice["delta"]["content"] if chat else choice["text"]) == chunk.text
        assert (choice["index"], choice["finish_reason"], choice["token_ids"]) == (1, "stop", [3, 4])
        assert choice["slipstream"]["pieces"] == list(pieces)
        assert choice["slipstream"]["origins"] == ["accepted", "bonus"]
        assert choice["slipstream"]["draft"] == {"tokens": ["<3>"], "parents": [-1], "path": [0]}
        assert choice["logprobs"] == answer._logprobs([(own.token_id, own) for own in entries], pieces, 5)


def test_more_tokens_than_the_context_holds_are_refused(address):
    def ask(path: str, **body) -> httpx.Response:
        return httpx.post(f"{address}{path}", json=body)

    chat = {"messages": [{"role": "user", "content": "abc"}]}
    for answer, name in (
        (ask("/v1/completions", prompt=["a", "abcde"], max_tokens=156), "max_tokens"),
        (ask("/v1/chat/completions", **chat, max_tokens=156), "max_tokens"),
        (ask("/v1/chat/completions", **chat, max_completion_tokens=156), "max_completion_tokens"),
        (ask("/v1/responses", input="abc", max_output_tokens=156), "max_output_tokens"),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        said = f"{name} is 156; the prompt has 5 tokens and the model's context holds 160, so it must be 155 or less"
        assert error["message"] == said
    ended = ask("/v1/completions", prompt="abcde", max_tokens=155, stop=list(letters.LETTERS))
    assert (ended.status_code, ended.json()["choices"][0]["finish_reason"]) == (200, "stop")
    cut = ask("/v1/completions", prompt="a" * 155, ignore_eos=True).json()  # the default of 16 is cut
    assert (cut["usage"]["completion_tokens"], cut["choices"][0]["finish_reason"]) == (5, "length")
    rest = ask("/v1/chat/completions", messages=[{"role": "user", "content": "a" * 150}], ignore_eos=True).json()
    assert rest["usage"]["total_tokens"] == 160


def test_a_writer_that_fails_ends_the_stream_with_an_error(address, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such letter")

    monkeypatch.setattr(Answer, "event", fail)
    body = {"prompt": "abc", "max_tokens": 4, "stream": True}
    *_, error, done = filter(None, httpx.post(f"{address}/v1/completions", json=body).text.split("\n\n"))
    assert json.loads(error.removeprefix("data: "))["error"] == {
        "message": "the server failed: RuntimeError('no such letter')",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert done == "data: [DONE]"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "a", "temprature": 1}, "there is no parameter 'temprature'; .* did you mean temperature?"),
        ({"prompt": "a", "speculation": {"deep": 1}}, "there is no parameter 'deep'"),
        ({"prompt": "a", "temperature": -1}, "temperature: Input should be greater than or equal to 0"),
        ({"prompt": "a", "n": 0}, "n: "),
        ({"prompt": "a", "n": 1000}, "prompts times n is 1000; it must be 64 or less"),
        ({"prompt": []}, "prompt: "),
        ({}, "prompt is missing"),
        ({"prompt": "a", "speculation": {"drafter": "nobody"}}, "nobody"),
        ({"prompt": "a", "speculation": {"rule": "nobody"}}, "nobody"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias: .*token ids"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not offered"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": [[1, 99999]]}, "."),
    ],
)
def test_what_is_wrong_is_named_in_openais_shape(address, body, said):
    answer = httpx.post(f"{address}/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert re.search(said, error["message"]), error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "speculation": {"deep": 1}}, "speculation.deep"),
    ],
)
def test_param_is_the_name_of_an_unknown_parameter(address, body, param):
    assert httpx.post(f"{address}/v1/completions", json=body).json()["error"]["param"] == param


def test_bodies_that_are_no_requests(address):
    for content in (b"{", b"[]", b'"x"', b"\xff\xfe", b""):
        answer = httpx.post(f"{address}/v1/completions", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400, content
        assert "message" in answer.json()["error"]
    assert httpx.get(f"{address}/v1/nothing").json()["error"]["type"] == "not_found_error"


def test_harmless_fields_are_accepted(client):
    done = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "ab"}],
        max_tokens=2,
        user="me",
        metadata={"a": "b"},
        store=True,
    )
    assert done.choices[0].message.role == "assistant"


def test_models_and_unknown_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL).model_extra["max_model_len"] > 0
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'; one of letters"):
        client.completions.create(model="gpt-9", prompt="a")


def test_metrics_count_what_was_done(address, client):
    def value(name: str) -> float:
        lines = httpx.get(f"{address}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"slipstream:{name}"))

    before = value("generation_tokens_total"), value("spec_decode_num_accepted_tokens_total")
    done = client.completions.create(
        model=MODEL,
        prompt="abcabcabc",
        max_tokens=16,
        temperature=0,
        extra_body={"speculation": {"depth": 3}, "ignore_eos": True},
    )
    assert value("generation_tokens_total") == before[0] + 16
    accepted = done.usage.model_extra["speculation"]["accepted"]
    assert value("spec_decode_num_accepted_tokens_total") == before[1] + accepted
    assert value("spec_decode_num_draft_tokens_total") > 0
    assert value("num_requests_active") == 0


def test_a_lossy_rule_is_named_in_answers_and_metrics(address, client):
    asked = {"speculation": {"rule": "lenient(factor=2)", "depth": 2}}
    answer = client.completions.create(model="letters", prompt="abc", max_tokens=4, temperature=1, extra_body=asked)
    told = answer.usage.speculation
    assert (told["rule"], told["lossless"]) == ("lenient(factor=2)", False)
    metrics = httpx.get(f"{address}/metrics").text
    assert 'slipstream:request_lossy_total{lossless="false",rule="lenient(factor=2)"} 1.0' in metrics
    ollama = {"model": "letters", "prompt": "abc", "stream": False, "options": {"num_predict": 3}}
    assert "lossless" not in httpx.post(f"{address}/api/generate", json=ollama).json()


def test_a_client_that_goes_away_frees_its_row(address):
    body = {"prompt": "abc", "max_tokens": 150, "temperature": 0, "stream": True, "ignore_eos": True}

    def active() -> float:
        lines = httpx.get(f"{address}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("slipstream:num_requests_active "))

    with httpx.stream("POST", f"{address}/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: active() == 0, 20)
    assert active() == 0


def test_keys_limits_and_sizes():
    limits = ServerLimits(max_requests=1, max_body=2000)
    config = ServerConfig(models=(MODEL,), limits=limits, api_keys=("secret", "other"))
    with served(config) as address:
        url, good = f"{address}/v1/completions", {"Authorization": "Bearer secret"}
        assert httpx.post(url, json={"prompt": "a"}).status_code == 401
        assert httpx.post(url, json={"prompt": "a"}, headers={"Authorization": "Bearer secre"}).status_code == 401
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert httpx.post(url, json={"prompt": "a", "max_tokens": 1}, headers=good).status_code == 200
        large = httpx.post(url, json={"prompt": "a" * 3000}, headers=good)
        assert large.status_code == 413
        assert "2000 bytes" in large.json()["error"]["message"]

        def chunked():
            for _ in range(30):
                yield b"x" * 100

        assert httpx.post(url, content=chunked(), headers=good).status_code == 413
        body = {"prompt": "abc", "max_tokens": 150, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", url, json=body, headers=good) as first:
            next(first.iter_lines())
            second = httpx.post(url, json={"prompt": "a"}, headers=good)
        if second.status_code != 200:  # the first may be done already
            assert second.status_code == 429
            assert second.headers["retry-after"] == "1"
            assert second.json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_that_takes_too_long_ends(n):
    with served(ServerConfig(models=(MODEL,), limits=ServerLimits(max_seconds=0.05))) as address:
        body = {"prompt": "abc", "max_tokens": 150, "ignore_eos": True, "n": n}
        whole = httpx.post(f"{address}/v1/completions", json=body)
        assert whole.status_code == 408
        assert whole.json()["error"]["message"] == "the request took more than 0.05 seconds"
        with httpx.stream("POST", f"{address}/v1/completions", json=body | {"stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert "the request took more than 0.05 seconds" in lines[-2]
        assert lines[-1] == "data: [DONE]"
        answer = httpx.post(
            f"{address}/api/generate", json={"model": MODEL, "prompt": "a", "stream": False, "raw": True}
        )
        assert answer.status_code in (200, 408)


def test_a_model_that_cannot_be_loaded_stops_the_server():
    def fail(name: str):
        raise ValueError("there is no such model")

    with served(open_model=fail) as address:
        wait_until(lambda: status(address) == 0)
        assert status(address) == 0, "nobody listens any more"


def test_models_take_turns_in_memory():
    opened = []

    def open_model(name: str) -> NativeEngine:
        opened.append(name)
        return NativeEngine(letters.target(), "none")

    with served(ServerConfig(models=("one", "two")), open_model) as address:
        for name in ("one", "two", "two", "one"):
            answer = httpx.post(f"{address}/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1})
            assert answer.json()["model"] == name
    assert opened == ["one", "two", "one"]


def test_a_taken_port_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match=r"cannot be listened on: .*; choose another --port"):
            bind("127.0.0.1", taken.getsockname()[1])
