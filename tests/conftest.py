"""What must be in place before anything else is imported, and the command line for all who test it."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from command import Command

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # workers share the cores, and so do the processes they start: more threads than cores wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits leaves its core to the other workers

if find_spec("triton") and not os.path.exists("/dev/nvidia0"):  # kernels for a GPU are interpreted where there is none
    os.environ.setdefault("TRITON_INTERPRET", "1")

if find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted

    interpreted.make_faster()
    interpreted.sum_rows_alike()

if find_spec("beartype") and find_spec("jaxtyping"):  # shapes in signatures are checked while tests run
    import typecheck

    typecheck.install(["slipstream.core", "slipstream.models", "slipstream.drafters"])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end: searching them for garbage takes a third of a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def packages() -> Iterator[None]:
    """Packages that tests compile are not the user's: tests share one model, in float32 whatever they ask for."""
    from slipstream.models.compiled import package

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "home", lambda: Path(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def closed_engines() -> Iterator[set[str]]:
    """The failures that engines had counted when they were closed, since the last test that looked."""
    from slipstream.engines.native.engine import NativeEngine

    close, failures = NativeEngine.close, set[str]()

    def closed(engine: NativeEngine) -> None:
        close(engine)
        failures.update(engine.stats["failures"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeEngine, "close", closed)
        yield failures
    assert not failures, "an engine that was shared by tests counted failures"


@pytest.fixture(autouse=True)
def no_hidden_failures(request: pytest.FixtureRequest, closed_engines: set[str]) -> Iterator[None]:
    """An engine goes on after a failure of one of its parts and counts it. Here such a failure fails the test, unless
    the test is marked `failures`."""
    yield
    found = sorted(closed_engines)
    closed_engines.clear()
    expected = request.node.get_closest_marker("failures")
    assert expected or not found, f"an engine counted failures: {found}; a test that means them is marked `failures`"


@pytest.fixture
def slipstream(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, with the default model loaded once for all tests of a worker."""
    from command import Command

    return Command(monkeypatch, capfd)
