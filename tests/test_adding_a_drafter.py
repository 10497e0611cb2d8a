"""The package that docs/adding-a-drafter.md describes drafts when one follows the page, and nothing but the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "adding-a-drafter.md").read_text()


def block(language: str) -> str:
    """The page's one block of a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return text


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The page's package as an installer lays it out: a module, and metadata with its entry points."""
    project = tomllib.loads(block("toml"))["project"]
    (tmp_path / "bigram_drafter.py").write_text(block("python"))
    info = tmp_path / f"bigram_drafter-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n{name} = {to}" for group, names in project["entry-points"].items() for name, to in names.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.model
def test_the_drafter_of_the_page_drafts(package):
    (command,) = re.findall(r"^slipstream (generate .*)$", PAGE, re.M)
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", *shlex.split(command), "--max-tokens", "16", "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["drafter"] == "bigram"
    assert report["drafted"] > 0
    assert report["tau"] > 1
