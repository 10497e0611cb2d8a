"""A live server on a tiny model of bytes that says what a test wants, and OpenAI's client for it."""

from __future__ import annotations

import inspect
import logging
import ssl
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_certificates() -> Iterator[None]:
    """Clients read all certificates of the system, which takes longer than most requests. Nothing here is encrypted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", lambda *_, **__: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        yield


@pytest.fixture(autouse=True, scope="session")
def patient_clients() -> Iterator[None]:
    """Requests of tests may take a minute, not five seconds: other tests keep the processors busy."""
    import httpx

    usual = inspect.signature(httpx.post).parameters["timeout"].default
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "read", "write", "pool"):
            patch.setattr(usual, name, 60.0)
        yield


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """The command logs to the standard error of its test, which is closed afterwards."""
    yield
    for name in ("slipstream.serve", "uvicorn"):
        logging.getLogger(name).handlers.clear()


@pytest.fixture(scope="module")
def engine() -> Any:
    from bytes_engine import Scripted

    return Scripted()


@pytest.fixture(scope="module")
def address(engine) -> Iterator[str]:
    from live import served

    with served(open_model=lambda name: engine) as here:
        yield here


@pytest.fixture(scope="module")
def client(address) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as opened:
        yield opened
