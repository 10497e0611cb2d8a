"""Several models within a memory limit."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.serve.config import ServerConfig, parse_bytes, shown_bytes
from slipstream.serve.errors import ApiError
from slipstream.serve.models import ModelPool

SIZES = {"small": 2, "middle": 5, "large": 7, "huge": 11}


class Engine:
    ready = True

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self._closed, self.text, self.prepared = name, closed, self, 0

    def prepare(self) -> None:
        self.prepared += 1

    def close(self) -> None:
        self._closed.append(self.name)


def run(scenario) -> list[str]:
    closed: list[str] = []

    async def start() -> None:
        pool = ModelPool(tuple(SIZES), lambda name: Engine(name, closed), 9, 10, SIZES.__getitem__)
        await scenario(pool)

    asyncio.run(start())
    return closed


def test_models_that_are_idle_give_way_when_memory_is_short():
    async def scenario(pool: ModelPool) -> None:
        for name in ("small", "middle", "small", "large", "small"):
            async with pool.use(name):
                pass
        assert {model.name for model in pool.loaded} == {"small", "large"}

    assert run(scenario) == ["middle"]


def test_a_model_is_prepared_for_its_first_request_when_it_is_loaded():
    async def scenario(pool: ModelPool) -> None:
        for _ in range(2):
            async with pool.use("small") as model:
                assert model.engine.prepared == 1

    run(scenario)


def test_a_model_that_never_fits_is_refused_and_closes_nothing():
    async def scenario(pool: ModelPool) -> None:
        async with pool.use("small"):
            pass
        with pytest.raises(
            ApiError, match="huge cannot be loaded: its weights take 11 bytes, and the server may use 10"
        ):
            async with pool.use("huge"):
                pass

    assert run(scenario) == []


def test_a_model_in_use_is_never_closed():
    async def scenario(pool: ModelPool) -> None:
        async with pool.use("middle"):
            with pytest.raises(ApiError, match="in use; try again later"):
                async with pool.use("large"):
                    pass
            async with pool.use("small"):
                pass

    assert run(scenario) == []


@pytest.mark.parametrize(("text", "count"), [("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5k", 1500), ("64", 64)])
def test_bytes_as_people_write_them(text, count):
    assert parse_bytes(text) == count


def test_what_is_no_number_of_bytes_is_refused():
    for text in ("much", "0", "-1GiB", "8 GiB or so"):
        with pytest.raises(ValueError, match="is no number of bytes; write it as 8GiB or 500MB"):
            parse_bytes(text)
    assert shown_bytes(3 << 29) == "1.5 GiB"
    assert ServerConfig().max_memory is None
