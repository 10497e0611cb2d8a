"""`tools/check_docs.py` finds what is wrong with a page, and nothing in a good one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "check_docs.py"
GOOD = """# Page
[here](#a-heading) and [a picture that
is there](image.svg), `code`, `docs/page.py`

## A heading
- item

```
[no link](nowhere.md) - in code
```
"""


@pytest.fixture
def problems(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("check_docs", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    (tmp_path / "image.svg").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.py").touch()

    def check(text: str) -> list[str]:
        page = tmp_path / "page.md"
        page.write_text(text)
        monkeypatch.setattr(tool, "ROOT", tmp_path)
        monkeypatch.setattr(tool, "PAGES", [page])
        code = tool.main()
        lines = capsys.readouterr().out.splitlines()
        assert code == bool(lines)
        return lines

    return check


def test_a_good_page_has_no_problem(problems):
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[gone](gone.md)", "page.md:1: gone.md does not exist"),
        ("a [link of\ntwo lines](gone.md)", "page.md:2: gone.md does not exist"),
        ('<img src="gone.svg">', "page.md:1: gone.svg does not exist"),
        ("`core/gone.py`", "page.md:1: there is no file core/gone.py"),
        ("[up](#nothing)", "page.md:1: #nothing names no heading of page.md"),
        ("word " * 30, "page.md:1: 150 columns; at most 120"),
        ("text\n- item", "page.md:2: the list needs an empty line before it"),
        ("text\n| a |", "page.md:2: the table needs an empty line before it"),
    ],
)
def test_problems_are_named(problems, text, problem):
    assert problems(text) == [problem]
