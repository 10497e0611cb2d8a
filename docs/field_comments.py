"""For the API pages: a dataclass field without a docstring is described by the comment at the end of its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is not None or attr.lineno is None or not isinstance(attr.filepath, Path):
            return
        lines = attr.filepath.read_text(encoding="utf-8").splitlines()
        _, mark, comment = lines[(attr.endlineno or attr.lineno) - 1].partition("  # ")
        if mark:
            attr.docstring = griffe.Docstring(comment, lineno=attr.lineno, parent=attr)
