"""One line per request, with its id and without its prompt."""

from __future__ import annotations

import io
import json
import logging
import sys

import httpx
import pytest
from live import MODEL, served

from slipstream.serve.config import ServerConfig
from slipstream.serve.logs import JsonFormatter, PlainFormatter, start_logging


class Lines(logging.Handler):
    """Keeps lines in both formats."""

    def __init__(self) -> None:
        super().__init__()
        self.json: list[dict] = []
        self.plain: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.json.append(json.loads(JsonFormatter().format(record)))
        self.plain.append(PlainFormatter().format(record))


@pytest.fixture
def lines(monkeypatch):
    logger, handler = logging.getLogger("slipstream.serve"), Lines()
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(logging.NOTSET)


def test_a_line_tells_what_a_request_got_and_not_what_it_asked(lines):
    body = {"prompt": "abcabc", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "n": 2}
    with served() as address:
        url = f"{address}/v1/completions"
        whole = httpx.post(url, json=body, headers={"X-Request-Id": "mine-7"})
        streamed = httpx.post(url, json=body | {"stream": True})
        wrong = httpx.post(url, json={"prompt": "a", "temprature": 1}, headers={"X-Request-Id": "bad\tid"})
        ollama = httpx.post(f"{address}/api/generate", json={"model": MODEL, "prompt": "abc", "stream": False})
        assert httpx.get(f"{address}/v1/models").headers["x-request-id"]
    assert whole.headers["x-request-id"] == "mine-7"
    assert wrong.headers["x-request-id"].startswith("req-")
    assert [line["status"] for line in lines.json] == [200, 200, 400, 200]
    for line, answer in zip(lines.json, (whole, streamed, wrong, ollama), strict=True):
        assert line["id"] == answer.headers["x-request-id"]
        assert line["seconds"] > 0
    for line in lines.json[:2]:
        assert line["model"] == MODEL
        assert (line["prompt_tokens"], line["completion_tokens"], line["finish_reason"]) == (6, 24, "length")
        assert line["tau"] >= 1
        assert line["first_token_seconds"] > 0
    assert "temprature" in lines.json[2]["error"]
    assert not any("abcabc" in line for line in lines.plain)
    assert "POST /v1/completions 200 " in lines.plain[0]


def test_prompts_are_logged_where_that_is_asked_for(lines):
    with served(ServerConfig(models=(MODEL,), log_prompts=True)) as address:
        httpx.post(f"{address}/v1/completions", json={"prompt": "abcabc", "max_tokens": 1})
        httpx.post(f"{address}/v1/none%0Aforged", json={})
    assert lines.json[0]["prompt"] == "abcabc"
    assert all("\n" not in line for line in lines.plain)


def test_lines_go_to_the_standard_error_of_their_time(monkeypatch):
    """A stream that was closed since the start is no error."""
    for name in ("slipstream.serve", "uvicorn"):
        logger = logging.getLogger(name)
        for part, value in (("handlers", []), ("propagate", False), ("setLevel", lambda level: None)):
            monkeypatch.setattr(logger, part, value)
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    start_logging("plain")
    logging.getLogger("slipstream.serve").warning("one")
    assert first.getvalue().endswith("WARNING one\n")
    monkeypatch.setattr(sys, "stderr", second)
    first.close()
    logging.getLogger("slipstream.serve").warning("two")
    assert second.getvalue().endswith("WARNING two\n")
    assert "Logging error" not in second.getvalue()
