"""Check the documentation: links and files that do not exist, lines above 120 columns, lists that do not render.

    python tools/check_docs.py

Prints one line per violation and exits 1 if there is any. `make lint` runs it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "benchmarks" / "README.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
FILE = re.compile(r"`([\w./*-]+/[\w.*-]+\.(?:py|cpp|hpp|json|md))`")
FOLDERS = ("", "src/slipstream", "benchmarks", "benchmarks/results")  # where a file that a page names may be
ITEM = re.compile(r"\s*([-*]|\d+\.) ")
MAX_COLUMNS = 120


def main() -> int:
    checks = (_links, _files, _columns, _lists)
    problems = [problem for page in PAGES for check in checks for problem in check(page)]
    for problem in problems:
        print(problem)
    return int(bool(problems))


def _prose(page: Path) -> list[str]:
    """The lines of a page, those of code blocks left empty."""
    lines, code = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if code or fence else line)
        code ^= fence
    return lines


def _links(page: Path) -> Iterator[str]:
    text = "\n".join(_prose(page))
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.end()) + 1}"
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{place}: {target} does not exist"
        elif anchor and file.suffix == ".md" and anchor not in _anchors(file):
            yield f"{place}: {target} names no heading of {file.name}"


def _files(page: Path) -> Iterator[str]:
    """Files that are named in backticks; those of the past are in CHANGELOG."""
    if page.name == "CHANGELOG.md":
        return
    for number, line in enumerate(_prose(page), 1):
        for name in FILE.findall(line):
            if not any(True for folder in FOLDERS for _ in (ROOT / folder).glob(name)):
                yield f"{page.relative_to(ROOT)}:{number}: there is no file {name}"


def _anchors(page: Path) -> set[str]:
    headings = (line.lstrip("#").strip() for line in _prose(page) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _columns(page: Path) -> Iterator[str]:
    for number, line in enumerate(_prose(page), 1):
        if len(line) > MAX_COLUMNS and not line.lstrip().startswith(("|", "[", "!", "<")):
            yield f"{page.relative_to(ROOT)}:{number}: {len(line)} columns; at most {MAX_COLUMNS}"


def _lists(page: Path) -> Iterator[str]:
    """A list or a table that follows a paragraph without an empty line is a part of the paragraph."""
    before = ""
    for number, line in enumerate(_prose(page), 1):
        kind = "list" if ITEM.match(line) else "table" if line.startswith("|") else None
        paragraph = before.strip() and not before.startswith(("#", "|", " ", "<")) and not ITEM.match(before)
        if kind and paragraph:
            yield f"{page.relative_to(ROOT)}:{number}: the {kind} needs an empty line before it"
        before = line


if __name__ == "__main__":
    sys.exit(main())
