"""The wheel holds every file of the package and works in an environment away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "slipstream"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROMPT = "List the numbers from one to ten."
NEEDED = (
    "slipstream/py.typed",
    "slipstream/bench/report/style.css",
    "slipstream/bench/workloads/code.jsonl",
    "slipstream/drafters/trained/smollm2-135m-eagle/model.safetensors",
    "slipstream/drafters/trained/smollm2-135m-draft/model.safetensors",
    "slipstream/kernels/cpu/src/passes/decoder.cpp",
    "slipstream/kernels/cpu/src/vectors.hpp",
    "slipstream/serve/page/index.html",
)


def missing(names: Iterable[str]) -> list[str]:
    """Files of the package in the checkout that a wheel with these names lacks."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted({path.relative_to(PACKAGE.parent).as_posix() for path in files} - set(names))


def build_wheel(folder: Path) -> Path:
    """Build in a copy of the checkout, which setuptools would otherwise fill with build/ and egg-info."""
    copy = folder / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(PACKAGE, copy / "src" / "slipstream", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy))
    shutil.rmtree(copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not {"pip", "setuptools"} <= {found.name for found in distributions()}:
        pytest.skip("the wheel is built by pip and setuptools")
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed `slipstream`; its dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    pip("--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = folder.glob("lib/python*/site-packages")
    # Python reads no .pth files there, so the checkout that is installed as editable stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "slipstream"


def run(command: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(command), *words], cwd=command.parent, env=environment, capture_output=True, text=True, timeout=300
    )


def test_the_wheel_holds_every_file_of_the_package(wheel):
    names = ZipFile(wheel).namelist()
    assert not missing(names)
    assert set(NEEDED) <= set(names)


@pytest.mark.parametrize("lost", NEEDED)
def test_a_lost_data_file_is_noticed(wheel, lost):
    assert missing(name for name in ZipFile(wheel).namelist() if name != lost) == [lost]


def test_the_wheel_names_its_commands_and_extras(wheel):
    with ZipFile(wheel) as archive:
        names = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        entry_points, metadata = (archive.read(names[name]).decode() for name in ("entry_points.txt", "METADATA"))
    assert "slipstream = slipstream.cli:main" in entry_points
    assert f"Version: {PROJECT['version']}\n" in metadata
    assert all(f"Provides-Extra: {extra}\n" in metadata for extra in PROJECT["optional-dependencies"])


def test_the_installed_command_is_the_wheel(command):
    done = run(command, "--version")
    assert done.returncode == 0, done.stderr
    assert PROJECT["version"] in done.stdout
    where = [str(command.parent / "python"), "-c", "import slipstream; print(slipstream.__file__)"]
    done = subprocess.run(where, cwd=command.parent, env={}, capture_output=True, text=True, timeout=120)
    assert Path(done.stdout.strip()).is_relative_to(command.parents[1]), done.stderr


@pytest.mark.model
def test_the_installed_command_generates_with_a_shipped_head(command):
    done = run(command, "generate", PROMPT, "-d", "eagle", "--depth", "2", "--max-tokens", "12", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "tau" in done.stderr
    assert "slower" not in done.stderr, "the kernels were not built from the wheel's sources"
