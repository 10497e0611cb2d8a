"""Progress on the standard error: a bar or a spinner on a terminal, one line elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, or a spinner without `total`. Yields a function to call with the bytes done so far."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:  # machines with torch and transformers alone
        Console = None  # type: ignore[assignment, misc]
    if Console is None or not (console := Console(stderr=True)).is_terminal:
        print(f"slipstream: {title}", file=sys.stderr, flush=True)
        yield lambda done: None
        return
    middle = (SpinnerColumn(),) if total is None else (BarColumn(), DownloadColumn())
    columns = (TextColumn("{task.description}", markup=False), *middle, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=total)
        yield lambda done: bars.update(task, completed=done)


def counting(console: Any, **options: Any) -> Any:
    """A rich progress bar with count, total, elapsed time, remaining time and description."""
    from rich import progress as rich

    kinds = (rich.MofNCompleteColumn, rich.TimeElapsedColumn, rich.TimeRemainingColumn)
    text = rich.TextColumn("{task.description}", markup=False)
    columns = (rich.BarColumn(12), *(kind() for kind in kinds), text)
    return rich.Progress(*columns, console=console, **options)


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off the progress bars and messages of transformers."""
    from transformers.utils import logging as chatter

    level, bars = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    chatter.set_verbosity(logging.ERROR)
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        chatter.set_verbosity(level)
        if bars:
            chatter.enable_progress_bar()


@contextmanager
def no_gguf_bar() -> Iterator[None]:
    """Turn off the bar of transformers' GGUF reader, which ignores the settings."""
    try:
        reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
        bar = reader.tqdm
    except (ImportError, AttributeError):  # versions that read them elsewhere
        yield
        return
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar
