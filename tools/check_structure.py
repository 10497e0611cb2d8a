"""Check the structure of the package: sizes, unique names, circles, and branches on the kind of a component.

    python tools/check_structure.py

Prints one line per violation and exits 1 if there is any. `make lint` runs it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "slipstream"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_FOLDER_FILES = 16
KIND_FREE = ("engines/native",)  # folders that never ask what kind a drafter or a rule is
RULE_NAMES = {
    "greedy",
    "token",
    "block",
    "coupled",
    "chosen",
    "replace",
    "no_replace",
    "spectr",
    "typical",
    "lenient",
    "bild",
}
COMPONENTS = re.compile(r"\b(drafter|rule|verifier|policy)\b", re.IGNORECASE)
ARGUMENT_CHECKS = "arguments.py"  # the modules of this name check the types of a user's arguments


def main() -> int:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    problems = [
        *_sizes(trees),
        *_folders(trees),
        *_duplicate_classes(trees),
        *_circles(trees),
        *_kind_checks(trees),
    ]
    for problem in problems:
        print(problem)
    return int(bool(problems))


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _sizes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    for path, tree in trees.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            yield f"{_name(path)}: {lines} lines; at most {MAX_FILE_LINES}"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{_name(path)}:{node.lineno}: {node.name} has {length} lines; at most {MAX_FUNCTION_LINES}"


def _folders(trees: dict[Path, ast.Module]) -> Iterator[str]:
    counts: dict[Path, int] = defaultdict(int)
    for path in trees:
        counts[path.parent] += path.name != "__init__.py"
    for folder, count in counts.items():
        if count > MAX_FOLDER_FILES:
            yield f"{_name(folder)}/: {count} modules; at most {MAX_FOLDER_FILES}"


def _duplicate_classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_name(path))
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"class {name} is defined in {', '.join(paths)}; class names are unique in the package"


def _circles(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Modules that import each other when they are loaded; imports inside functions do not count."""
    modules = {_module(path): path for path in trees}
    imports = {module: _imported(trees[path], modules) - {module} for module, path in modules.items()}
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> Iterator[str]:
        if module in trail:
            yield "circle of imports: " + " -> ".join([*trail[trail.index(module) :], module])
            return
        if module in done:
            return
        for other in sorted(imports[module]):
            yield from visit(other, [*trail, module])
        done.add(module)

    for module in sorted(imports):
        yield from visit(module, [])


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: dict[str, Path]) -> set[str]:
    imported: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            imported |= names or ({node.module} & modules.keys())
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names} & modules.keys()
    return imported


def _kind_checks(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """In the engine, no `isinstance` on components and no comparison with a rule's name. A module of arguments may use
    `isinstance`: it decides whether a user passed a name or an object."""
    for path, tree in trees.items():
        if not _name(path).startswith(KIND_FREE):
            continue
        for node in ast.walk(tree):
            if (reason := _kind_check(node, path.name == ARGUMENT_CHECKS)) is not None:
                yield f"{_name(path)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}: {reason}"


def _kind_check(node: ast.AST, arguments: bool) -> str | None:
    """Why a node asks for the kind of a component; None if it does not."""
    text = ast.unparse(node) if isinstance(node, ast.Call | ast.Compare) else ""
    if text.startswith("isinstance(") and COMPONENTS.search(text) and not arguments:
        return "components are never asked for their kind"
    if isinstance(node, ast.Compare) and _strings(node) & RULE_NAMES:
        return "rules declare what they can do"
    return None


def _strings(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


if __name__ == "__main__":
    sys.exit(main())
