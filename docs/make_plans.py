"""Writes the generated parts of docs/plans.md: nodes, worked plans, passes; with --check, says whether they are up to
date."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

from slipstream.plan.ir.library import library
from slipstream.plan.ir.nodes import DEFINITIONS, OPERATIONS, PlanNode
from slipstream.plan.ir.values import shown
from slipstream.plan.passes.levels import ABOUT, LEVELS
from slipstream.plan.passes.passes import PASSES

PAGE = Path(__file__).with_name("plans.md")
FORMS = {
    "model": 'NAME = model("MODEL", …)',
    "drafter": 'NAME = KIND("MODEL", …)',
    "stage": "NAME = stage(FIRST, SECOND)",
    "draft": "%NAME = draft DRAFTER depth=… shape=… overlap=…",
    "guard": "%NAME = guard %DRAFT",
    "score": "%NAME = score MODEL %DRAFT",
    "verify": "%NAME = verify RULE %SCORES",
    "route": "%NAME = route MODEL %VERDICT threshold=… lossy=true",
    "commit": "commit %VERDICT",
}


def node_row(node: type[PlanNode]) -> str:
    about = " ".join((node.__doc__ or "").split())
    return f"| `{FORMS[node.word]}` | {about} |"


def argument_rows(node: type[PlanNode]) -> list[str]:
    entries = [entry for entry in fields(node) if "help" in entry.metadata]
    return [f"| {node.word} | `{e.name}` | `{shown(e.default)}` | {e.metadata['help']} |" for e in entries]


def parts() -> dict[str, str]:
    nodes = [*DEFINITIONS, *OPERATIONS]
    rows = ["| node | what |", "|---|---|", *map(node_row, nodes), ""]
    rows += ["| node | argument | default | what |", "|---|---|---|---|"]
    rows += [row for node in nodes for row in argument_rows(node)]
    plans = [f"```\n{path.read_text()}```\n" for path in library().values()]
    passes = ["| pass | what |", "|---|---|"]
    passes += [f"| `{name}` | {' '.join((function.__doc__ or '').split())} |" for name, function in PASSES.items()]
    passes += ["", "| level | what | passes |", "|---|---|---|"]
    passes += [f"| `-O{level}` | {ABOUT[level]} | {', '.join(LEVELS[level])} |" for level in LEVELS]
    return {"nodes": "\n".join(rows), "plans": "\n".join(plans).rstrip(), "passes": "\n".join(passes)}


def page() -> str:
    text = PAGE.read_text()
    for name, part in parts().items():
        text = re.sub(
            rf"<!-- {name} -->\n.*?<!-- end -->",
            lambda _, name=name, part=part: f"<!-- {name} -->\n{part}\n<!-- end -->",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    written = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == written else "docs/plans.md is out of date; run `make docs`")
    PAGE.write_text(written)
