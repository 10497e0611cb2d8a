"""`tools/check_structure.py` reports what breaks the structure of the package, and the package itself is clean."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "check_structure.py"
FAULTS = {
    "class Twice is defined in": {"a.py": "class Twice: ...", "b.py": "class Twice: ..."},
    "circle of imports": {"a.py": "import slipstream.b", "b.py": "import slipstream.a"},
    "17 modules; at most 16": {f"many/m{n}.py": "" for n in range(17)},
    "401 lines; at most 400": {"long.py": "\n" * 401},
    "long has 61 lines; at most 60": {"a.py": "def long():\n" + "    pass\n" * 60},
    "components are never asked for their kind": {"engines/native/a.py": "isinstance(drafter, int)"},
    "rules declare what they can do": {"engines/native/a.py": "rule == 'greedy'"},
}


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("check_structure", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_package_is_clean(tool, capsys):
    assert tool.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize("problem", FAULTS)
def test_a_fault_is_reported(tool, tmp_path, monkeypatch, capsys, problem):
    monkeypatch.setattr(tool, "PACKAGE", tmp_path / "slipstream")
    for name, text in FAULTS[problem].items():
        path = tmp_path / "slipstream" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert tool.main() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert problem in line


@pytest.mark.parametrize(("code", "status"), [("isinstance(drafter, int)", 0), ("rule == 'greedy'", 1)])
def test_a_module_of_arguments_may_check_their_types(tool, tmp_path, monkeypatch, code, status):
    monkeypatch.setattr(tool, "PACKAGE", tmp_path / "slipstream")
    path = tmp_path / "slipstream" / "engines" / "native" / "arguments.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert tool.main() == status
