"""Clients in other languages and programs, unmodified, against a live server on the default model.

OpenAI's JavaScript client: `npm install openai` in any folder, and SLIPSTREAM_NODE_MODULES names its `node_modules`.
simonw/llm: `pip install llm` in any environment, and SLIPSTREAM_LLM names its `llm`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import command, tool

pytestmark = pytest.mark.model
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with command("-d", "eagle") as address:
        yield address


@pytest.fixture(scope="module")
def modules() -> str:
    tool("node", "SLIPSTREAM_NODE")
    folder = os.environ.get("SLIPSTREAM_NODE_MODULES", HERE / "node_modules")
    if not (Path(folder) / "openai").is_dir():
        pytest.skip("the package openai of npm is not installed; SLIPSTREAM_NODE_MODULES names the folder with it")
    return str(folder)


def test_openais_javascript_client(modules, server):
    line = [tool("node", "SLIPSTREAM_NODE"), str(HERE / "client.mjs"), server]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, env=os.environ | {"NODE_MODULES": modules})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


@pytest.fixture(scope="module")
def llm() -> str:
    return tool("llm", "SLIPSTREAM_LLM")


def test_llm_with_its_openai_plugin(llm, server, tmp_path):
    entry = f"- model_id: here\n  model_name: smollm2-135m\n  api_base: {server}/v1\n  supports_schema: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"LLM_USER_PATH": str(tmp_path)}

    def ask(*words: str) -> str:
        line = [llm, "-m", "here", "-o", "seed", "7", "-o", "max_tokens", "30", *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, env=env, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout

    words = ("-s", "Be brief.", "-o", "temperature", "0.7", "Name three colours.")
    streamed = ask(*words)
    assert len(streamed.strip()) > 5
    assert ask("--no-stream", *words) == streamed
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    assert json.loads(ask("--schema", json.dumps(schema), "A colour"))["colour"] in ("red", "blue")
    logged = subprocess.run([llm, "logs", "--json"], capture_output=True, text=True, env=env).stdout
    assert json.loads(logged)[0]["input_tokens"] > 0
