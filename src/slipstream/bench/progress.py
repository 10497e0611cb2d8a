"""Shows the progress of a run on standard error: a bar on a terminal if rich is installed, otherwise lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slipstream.models.sources.progress import counting

Say = Callable[[str], None]


@contextmanager
def progress(total: int, done: int = 0) -> Iterator[Say]:
    """Yields a function to call with the title of each measurement before it begins."""
    try:
        from rich.console import Console
    except ImportError:
        yield _lines(total, done)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(total, done)
        return
    with counting(console, transient=True) as bars:
        task = bars.add_task("", total=total, completed=done - 1)
        yield lambda title: bars.update(task, advance=1, description=title)


def _lines(total: int, done: int) -> Say:
    count, started = done, time.perf_counter()

    def say(title: str) -> None:
        nonlocal count
        count += 1
        print(f"{count}/{total} {time.perf_counter() - started:.0f} s: {title}", file=sys.stderr, flush=True)

    return say
