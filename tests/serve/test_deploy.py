"""The dashboard, the Dockerfile and the systemd unit in examples/deploy name what there is."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import typer
from live import served

from slipstream.cli.app import app
from slipstream.cli.output.show import INTERRUPTED
from slipstream.serve import local_shared

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
DOCS = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.fixture(scope="module")
def names():
    """The names of all metrics, of a server whose GPU and processor count joules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_shared, "gpu_counter", lambda: lambda: 5.0)
        patch.setattr(local_shared, "Rapl", lambda: SimpleNamespace(read=lambda: 5.0))
        with served() as address:
            httpx.post(f"{address}/v1/completions", json={"prompt": "abcabc", "max_tokens": 8, "temperature": 0})
            lossy = {"rule": "lenient(factor=2)", "depth": 2}
            httpx.post(f"{address}/v1/completions", json={"prompt": "abc", "max_tokens": 4, "speculation": lossy})
            text = httpx.get(f"{address}/metrics").text
    return set(re.findall(r"^(slipstream:\w+)", text, re.M))


def test_the_dashboard_shows_metrics_that_exist(names):
    board = json.loads((DEPLOY / "grafana.json").read_text())
    used = set(re.findall(r"slipstream:\w+", json.dumps(board)))
    assert len(used) > 15
    assert used <= names
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_docs_list_metrics_that_exist(names):
    used = set(re.findall(r"slipstream:\w+", DOCS.read_text()))
    whole = names | {name.removesuffix("_count") for name in names}
    assert used
    assert used <= whole


def options() -> set[str]:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


def check(words: list[str]) -> None:
    assert words[:2] == ["slipstream", "serve"]
    assert {word for word in words if word.startswith("-")} <= options()


def test_the_dockerfile_runs_the_command_of_the_docs():
    text = (DEPLOY / "Dockerfile").read_text()
    entry, command = (json.loads(re.search(rf"^{name} (.*)$", text, re.M)[1]) for name in ("ENTRYPOINT", "CMD"))
    check(entry + command)
    for line in re.findall(r"^#   (docker .*)$", text, re.M):
        assert line in DOCS.read_text()
    for line in re.findall(r"^COPY (.*) \S+$", text, re.M):
        assert all((DEPLOY.parents[1] / name).exists() for name in line.split())


def test_the_unit_runs_a_command_that_exists():
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "slipstream.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    check([Path(words[0]).name, *words[1:]])
    assert "2" in unit["Service"]["RestartPreventExitStatus"], "a wrong command line is not tried again"
    assert unit["Service"]["KillSignal"] == "SIGINT"
    assert unit["Service"]["SuccessExitStatus"] == str(INTERRUPTED), "a unit that was stopped has not failed"
    extras = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for file in ("slipstream.service", "Dockerfile"):
        (given,) = re.findall(r"(?:slipstream-lm|\.)\[([\w,]+)\]", (DEPLOY / file).read_text())
        assert {"serve"} <= set(given.split(",")) <= extras.keys()


def test_the_image_is_built_from_files_that_are_sent_to_docker():
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for line in copied for name in line.split()} <= set(ignored)
