"""The command line: one file per verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb. A user's mistake is one sentence and exit code 2; `--debug` shows the traceback instead."""
    from slipstream.cli.app import app
    from slipstream.cli.output.show import INTERRUPTED

    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        check_text(words)
        try:
            app([word for word in words if word != "--debug"], prog_name="slipstream")
        finally:
            sys.stdout.flush()  # a full disk is reported here, not when the interpreter ends
    except (ValueError, FloatingPointError, OSError) as error:
        if debug:
            raise
        sys.exit(fail(_system_error(error) if isinstance(error, OSError) else str(error)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def check_text(words: Sequence[str]) -> None:
    """Refuse arguments that are no UTF-8, which no tokenizer and no terminal takes."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the argument {os.fsencode(word)!r} is not UTF-8 text") from error


def _system_error(error: OSError) -> str:
    """What the system refused. Only writing, to stdout or to an open file, fails without a name."""
    if error.strerror is None:
        return str(error)
    return f"cannot write: {error.strerror}" if error.filename is None else f"{error.filename}: {error.strerror}"


def fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2
