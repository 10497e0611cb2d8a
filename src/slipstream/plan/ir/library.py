"""Plans by name or file: the plans that come with slipstream, and files in text or JSON."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from slipstream.plan.ir.json_form import from_json
from slipstream.plan.ir.nodes import Plan, PlanError, Position
from slipstream.plan.ir.parser import near, parse_plan

FOLDER = Path(__file__).parents[1] / "library"
SUFFIX = ".plan"


def library() -> dict[str, Path]:
    """The plans that come with slipstream, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob(f"*{SUFFIX}"))}


def load_plan(given: str | PathLike[str] | Plan) -> Plan:
    """A plan from a file, from the library, or as it is."""
    if isinstance(given, Plan):
        return given
    path = library().get(str(given), Path(given))
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        legal = ", ".join(library())
        raise PlanError(
            f"there is no plan {str(given)!r}; a plan is a file or one of {legal}{near(str(given), library())}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"cannot read the plan {path}: {getattr(error, 'strerror', None) or 'it is no text'}"
        ) from error
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError as error:
            place = Position(error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else None
            raise PlanError("the JSON is malformed", place, str(given)) from error
        return from_json(data.get("plan", data))
    return parse_plan(text, str(given))
