"""The command line: one file per verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb. A user's mistake is one sentence and exit code 2; `--debug` shows the traceback instead."""
    from slipstream.cli.app import app

    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        app([word for word in words if word != "--debug"], prog_name="slipstream")
    except (ValueError, FloatingPointError) as error:
        if debug:
            raise
        sys.exit(fail(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)


def fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2
