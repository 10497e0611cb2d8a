"""A llama.cpp built for this machine: where it is, how it was built, and its server as a process."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slipstream.models.sources import store

WHEEL = "wheel"  # the value of `library` that asks for the Python package
SERVER = "llama-server"
START = 120.0  # seconds until a server must be ready
LISTENING = re.compile(r"listening on (http://\S+)")


@dataclass(frozen=True)
class LlamaBuild:
    """A folder with llama.cpp's programs and shared libraries."""

    folder: Path

    @property
    def details(self) -> dict[str, str]:
        """What `build_llamacpp.sh` noted: version, commit, flags, compiler, instructions. Empty for other builds."""
        try:
            details = json.loads((self.folder / "build.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(key): str(value) for key, value in details.items()} if isinstance(details, dict) else {}

    @property
    def label(self) -> str:
        details = self.details
        known = [details[name] for name in ("commit", "flags", "compiler") if details.get(name)]
        return f"llama.cpp (native build {', '.join(known) or self.folder})"

    def program(self, name: str) -> Path:
        return self.folder / name


def default_folder() -> Path:
    """Where `benchmarks/peers/build_llamacpp.sh` puts a build."""
    return store.home().parent / "llamacpp"


def find_build(library: str) -> LlamaBuild | None:
    """The build that the option `library` names; by default the one in the default folder. None: the Python package."""
    if library == WHEEL:
        return None
    path = Path(library).expanduser() if library else default_folder()
    folder = path if path.is_dir() else path.parent
    if path.exists() and (folder / SERVER).is_file():
        return LlamaBuild(folder.resolve())
    if library:
        raise ValueError(
            f"library is {library!r}; it must be a folder with {SERVER} and its libraries, as build_llamacpp.sh makes "
            f"it, a library in such a folder, or {WHEEL!r}"
        )
    return None


class NativeServer:
    """A running llama-server. `listening_address` is its URL; `close` ends it."""

    def __init__(self, build: LlamaBuild, arguments: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed with the server
        command = [str(build.program(SERVER)), "--host", "127.0.0.1", "--port", "0", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        try:
            self.listening_address = self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _wait(self) -> str:
        end = time.monotonic() + START
        while time.monotonic() < end:
            address = LISTENING.search(self._printed())
            if address and _healthy(address[1]):
                return address[1]
            if self._process.poll() is not None:
                raise RuntimeError(f"{SERVER} ended with status {self._process.returncode}: {self._reason()}")
            time.sleep(0.05)
        raise RuntimeError(f"{SERVER} was not ready after {START:.0f} s")

    def _printed(self) -> str:
        log = self._log.fileno()  # the server writes at the same offset, so this reads without moving it
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def _reason(self) -> str:
        lines = [line.strip() for line in self._printed().splitlines() if line.strip()]
        return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it printed nothing")


def _healthy(address: str) -> bool:
    parts = urlsplit(address)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        link.request("GET", "/health")
        return link.getresponse().status == 200
    except OSError:
        return False
    finally:
        link.close()
