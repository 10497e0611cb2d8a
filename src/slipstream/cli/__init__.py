"""The command line: one file per verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. A user's mistake gives one sentence and exit code 2; `--debug` shows the traceback instead."""
    from slipstream.cli.preload import preload_torch

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    command = next((argument for argument in arguments if argument != "--debug"), "")
    if not {"--help", "-h"} & set(arguments):
        preload_torch(command)
    from slipstream.cli.commands import build_app
    from slipstream.cli.output.show import INTERRUPTED

    app = build_app(command)
    try:
        check_text(arguments)
        try:
            app([argument for argument in arguments if argument != "--debug"], prog_name="slipstream")
        finally:
            sys.stdout.flush()  # a full disk is reported here, not when the interpreter ends
    except (ValueError, FloatingPointError, OSError) as error:
        if debug:
            raise
        sys.exit(fail(_system_error(error) if isinstance(error, OSError) else str(error)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def check_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8, which tokenizers and terminals cannot use."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the argument {os.fsencode(argument)!r} is not UTF-8 text") from error


def _system_error(error: OSError) -> str:
    """A sentence about an error of the operating system. Only writes to open files have no file name."""
    if error.strerror is None:
        return str(error)
    return f"cannot write: {error.strerror}" if error.filename is None else f"{error.filename}: {error.strerror}"


def fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2
