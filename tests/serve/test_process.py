"""Models in a process of their own: the same answers, errors and counts as in the server's process."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from functools import partial

import httpx
import pytest
from live import served, served_by_workers, status, wait_until
from remote_letters import open_letters

from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.process.engine import ProcessEngine
from slipstream.engines.process.session import EngineSession
from slipstream.engines.prompt import ConditionedPrompt
from slipstream.serve.workers.group import WorkerGroup

LONG = {"prompt": "abcabcabc", "max_tokens": 120, "ignore_eos": True, "seed": 3, "speculation": {"depth": 2}}
OPTIONS = {"max_tokens": 24, "speculation": Speculation(depth=2)}


@pytest.fixture(scope="module")
def local() -> Iterator[NativeEngine]:
    with open_letters() as engine:
        yield engine


@pytest.fixture(scope="module")
def remote() -> Iterator[ProcessEngine]:
    with ProcessEngine(open_letters) as engine:
        yield engine


@pytest.fixture(scope="module")
def address(remote) -> Iterator[str]:
    with served(open_model=lambda name: remote) as here:
        yield here


@pytest.fixture(scope="module")
def workers(remote) -> Iterator[tuple[str, WorkerGroup]]:
    with served_by_workers(remote, 2) as here:
        yield here


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("abcabc", {}),
        ("abcabc", {"n": 3, "logprobs": 2, "prompt_logprobs": 1}),
        ([5, 6, 7, 5, 6], {"stop": ("c", "nm"), "ignore_eos": True}),
        ([{"role": "user", "content": "abab"}], {"regex": "[ab]+", "max_tokens": 8}),
        ("abcabc", {"prediction": "abcabcabc"}),
        ("abc", {"max_tokens": 0}),
    ],
)
def test_requests_have_the_same_completions(local, remote, prompt, options):
    how = Sampling(0.8, seed=5)
    ours, theirs = (engine.generate(prompt, how, **OPTIONS | options) for engine in (remote, local))
    for mine, own in zip(ours, theirs, strict=True):
        for field in fields(mine):
            if field.name != "queue_seconds":
                assert getattr(mine, field.name) == getattr(own, field.name), field.name


def test_a_cancel_that_comes_after_the_end_leaves_nothing(remote):
    handles = remote.submit("abcabc", Sampling(0.8, seed=5), GenerationOptions(max_tokens=4))
    handles[0].result()
    remote._cancel(remote._next - 1)
    assert remote.call(remembered) == 0


def remembered(engine: NativeEngine) -> int:
    """Requests that the sessions of this process still know."""
    sessions = [thing for thing in gc.get_objects() if isinstance(thing, EngineSession)]
    return sum(len(session._jobs) + len(session._cancelled) + len(session._starting) for session in sessions)


def test_the_model_and_its_features_are_known(local, remote):
    assert remote.model_info == local.model_info
    assert remote.version == local.version
    assert set(remote.capabilities.drafters) == set(local.capabilities.drafters)
    assert remote.text.encode("abc") == local.text.encode("abc")
    assert remote.call(label_of) == local.label


def label_of(engine: NativeEngine) -> str:
    return engine.label


def counts_of(engine: NativeEngine) -> dict[str, object]:
    return engine.stats


@pytest.mark.parametrize(
    "options",
    [{"speculation": Speculation(drafter="nobody")}, {"max_tokens": -1}, {"stop_token_ids": [-4]}, {"regex": "("}],
)
def test_what_is_refused_is_refused_with_the_same_sentence(local, remote, options):
    said = []
    for engine in (remote, local):
        with pytest.raises(ValueError, match=" ") as refusal:
            engine.submit("abc", None, GenerationOptions(**options))
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_audio_is_refused_and_not_read_as_text(remote):
    prompt = ConditionedPrompt([5, 6, 7], object())
    with pytest.raises(ValueError, match="takes text only as a prompt; transcribe audio with call"):
        remote.generate(prompt, Sampling(0), max_tokens=2)


def test_a_model_that_cannot_be_opened_raises_its_own_error():
    with pytest.raises(ValueError, match="invalid literal for int"):
        ProcessEngine(partial(int, "no engine"))


def events(address: str, body: dict) -> list[dict]:
    text = httpx.post(f"{address}/v1/completions", json=body | {"stream": True}).text
    return [json.loads(event[6:]) for event in text.split("\n\n") if event.startswith("data: {")]


def test_streams_are_the_same(address, local):
    with served(open_model=lambda name: local) as own:
        body = LONG | {"stream_options": {"include_usage": True}, "n": 2, "return_token_ids": True, "logprobs": 1}
        both = [events(where, body) for where in (address, own)]
    for parts in both:
        for part in parts:
            part["id"] = part["created"] = None
    by_sample = [
        [[part for part in parts if [c["index"] for c in part["choices"]] == index] for index in ([0], [1], [])]
        for parts in both
    ]
    assert by_sample[0] == by_sample[1]


def test_a_request_that_the_engine_refuses_gets_400(address):
    for stream in (True, False):
        body = LONG | {"stream": stream, "speculation": {"drafter": "nobody"}}
        answer = httpx.post(f"{address}/v1/completions", json=body)
        assert answer.status_code == 400
        assert "there is no drafter called 'nobody'" in answer.json()["error"]["message"]


def test_a_client_that_goes_away_frees_its_row(address, remote):
    body = LONG | {"n": 8, "stream": True, "speculation": {"off": True}}
    before = remote.call(counts_of)["tokens"]
    with httpx.stream("POST", f"{address}/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: remote.stats["tokens"] > before and not remote.stats["running"], 10)
    assert remote.stats["tokens"] - before < 8 * 120
    assert not remote._jobs


def value(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"slipstream:{name}"))


def test_workers_give_the_same_answers_and_add_up_their_counts(workers, address, remote):
    here, group = workers
    assert len(group.process_ids) == 2
    assert status(here) == 200
    before = value(here, "generation_tokens_total")
    expected = httpx.post(f"{address}/v1/completions", json=LONG).json()["choices"]
    for _ in range(4):  # each on a connection of its own, which go to the workers in turn
        assert httpx.post(f"{here}/v1/completions", json=LONG).json()["choices"] == expected
    assert {value(here, "generation_tokens_total") for _ in range(2)} == {before + 4 * 120}
    assert {value(here, "num_requests_active") for _ in range(2)} == {0.0}
    # the engine's counts come from its process ten times a second
    wait_until(lambda: remote.stats == remote.call(counts_of) and not remote.stats["running"])
    for path in ("/v1/models", "/api/tags", "/v1/slipstream", "/"):
        both = [httpx.get(here + path) for _ in range(2)]
        assert both[0].status_code == 200
        assert both[0].text == both[1].text
    assert [httpx.post(f"{here}/v1/completions", json={"model": "no"}).status_code for _ in range(2)] == [
        400,
        400,
    ]
    assert [httpx.get(f"{here}/v1/models/no").status_code for _ in range(2)] == [404, 404]


@pytest.mark.failures
def test_a_worker_that_is_killed_frees_its_rows_and_is_started_again(workers, remote):
    here, group = workers
    before, counted = group.process_ids, value(here, "generation_tokens_total")
    with ExitStack() as stack:
        body = LONG | {"n": 8, "stream": True, "speculation": {"off": True}}  # two of these fill all rows
        opened = [stack.enter_context(httpx.stream("POST", f"{here}/v1/completions", json=body)) for _ in range(2)]
        lines = [stream.iter_lines() for stream in opened]  # one of each worker
        assert all(map(next, lines))
        os.kill(before[0], signal.SIGKILL)
        ends = []
        for rest in lines:
            try:
                ends.append([line for line in rest if line][-1])
            except httpx.HTTPError:
                ends.append("cut off")
        assert sorted(ends) == ["cut off", "data: [DONE]"]
    assert status(here) == 200, "the other worker answers"
    assert value(here, "generation_tokens_total") == counted + 8 * 120, "counters never go down"
    assert value(here, "num_requests_active") == 0
    wait_until(lambda: not remote.stats["running"])


@pytest.mark.failures
def test_a_process_that_dies_ends_its_streams_and_is_started_again(address, remote):
    expected, parts = httpx.post(f"{address}/v1/completions", json=LONG).json(), list[str]()

    def ask() -> None:
        body = LONG | {"n": 16, "stream": True, "speculation": {"off": True}}
        parts.append(httpx.post(f"{address}/v1/completions", json=body).text)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    wait_until(lambda: remote.stats["running"] + remote.stats["waiting"] > 3 * 16)  # all four have arrived
    os.kill(remote.process_id, signal.SIGKILL)
    for client in clients:
        client.join()
    assert status(address) == 503
    refused = httpx.post(f"{address}/v1/completions", json=LONG)
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert all("the engine's process ended (signal 9); it is started again" in part for part in parts)
    assert all(part.endswith("data: [DONE]\n\n") for part in parts)
    wait_until(lambda: status(address) == 200)
    assert httpx.post(f"{address}/v1/completions", json=LONG).json()["choices"] == expected["choices"]
