"""A live server on a tiny model of bytes that says what a test wants, and OpenAI's client for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


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
