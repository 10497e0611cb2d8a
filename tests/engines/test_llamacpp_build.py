"""A llama.cpp built for this machine: it is found, named, started and ended."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.engines import extras, open_engine
from slipstream.engines.llamacpp import settings
from slipstream.engines.llamacpp.native_build import NativeServer, default_folder, find_build
from slipstream.engines.llamacpp.settings import LlamaCppConfig, server_arguments

SERVER = f"""#!{sys.executable}
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


if "bad.gguf" in sys.argv:
    print("loading\\nerror: no such model\\nexiting", flush=True)
    raise SystemExit(1)
server = HTTPServer(("127.0.0.1", 0), Handler)
print(f"main: listening on http://127.0.0.1:{{server.server_port}}", flush=True)
server.serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program = tmp_path / "llama-server"
    program.write_text(SERVER)
    program.chmod(0o755)
    (tmp_path / "libllama.so").touch()
    return tmp_path


def test_a_build_is_found_by_its_folder_or_its_library(folder, monkeypatch):
    for path in (folder, folder / "libllama.so"):
        assert find_build(str(path)).folder == folder.resolve()
    assert find_build("wheel") is None
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(folder / "cache"))
    assert find_build("") is None
    default_folder().parent.mkdir()
    default_folder().symlink_to(folder)
    assert find_build("").folder == folder.resolve()
    assert extras.missing("llamacpp") is None


def test_a_folder_without_a_server_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be a folder with llama-server"):
        find_build(str(tmp_path))
    with pytest.raises(ValueError, match="must be a folder with llama-server"):
        open_engine("llamacpp", "smollm2-135m", options={"library": str(tmp_path / "libllama.so")})


def test_the_label_names_commit_flags_and_compiler(folder):
    build = find_build(str(folder))
    assert build.label == f"llama.cpp (native build {folder.resolve()})"
    details = {"commit": "0c1e57098", "flags": "-DGGML_NATIVE=ON", "compiler": "g++ 12.2.0"}
    (folder / "build.json").write_text(json.dumps(details))
    assert build.label == "llama.cpp (native build 0c1e57098, -DGGML_NATIVE=ON, g++ 12.2.0)"


def test_a_server_is_started_and_ended(folder):
    server = NativeServer(find_build(str(folder)), ["--model", "good.gguf"])
    assert server.listening_address.startswith("http://127.0.0.1:")
    server.close()
    assert server._process.returncode is not None
    with pytest.raises(RuntimeError, match="ended with status 1: error: no such model"):
        NativeServer(find_build(str(folder)), ["--model", "bad.gguf"])


def test_its_arguments_say_what_the_package_is_told(monkeypatch):
    def arguments(drafter, depth=None, **options) -> str:
        return " ".join(server_arguments(Path("m.gguf"), drafter, depth, 100, replace(plain, **options)))

    monkeypatch.setattr(settings, "gguf_file", Path)
    plain = LlamaCppConfig(threads=2)
    common = "--model m.gguf --parallel 4 --ctx-size 400 --threads 2 --cache-ram 0"
    assert arguments("none") == common
    assert arguments("none", cache=1) == common.removesuffix(" --cache-ram 0")
    named = f"{common} --spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 5"
    assert arguments("ngram", 5, ngram=3) == named
    assert arguments("ngram_mod", 5).endswith("--spec-type ngram-mod --spec-ngram-mod-n-max 5 --spec-ngram-mod-n-min 0")
    assert arguments("ngram_cache").endswith("--spec-type ngram-cache")
    drafted = "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 3"
    assert arguments("draft_model", 3, model="d.gguf").endswith(drafted)
    with pytest.raises(ValueError, match="needs a name"):
        arguments("draft_model")
    with pytest.raises(ValueError, match="library=wheel"):
        arguments("draft_model", model="d.gguf", probabilistic=1)
