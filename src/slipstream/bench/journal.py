"""Writes every finished measurement to disk at once, so that a killed run can resume.

A line is written by one system call and synced to disk before the next measurement begins. An incomplete last line of a
killed process is removed. Any other unreadable line is reported.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Self


class Journal:
    """Entries by key, in memory only if there is no folder. One run at a time can write to a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / "journal.jsonl" if folder else None
        self._entries: dict[str, dict[str, Any]] = {}
        if self._path is not None:
            with writing(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (held as long as the journal)
                try:
                    _lock(self._file, self._path)
                    self._read(self._path)
                except BaseException:
                    self._file.close()
                    raise

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        return self._entries.get(_name(key))

    def add(self, key: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        self._entries[_name(key)] = dict(entry)
        if self._path is None:
            return
        line = json.dumps({"key": key, "entry": entry}, sort_keys=True) + "\n"
        with writing(self._path):
            self._append(self._file.fileno(), line.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock of the folder."""
        if self._path is not None:
            self._file.close()

    def _append(self, file: int, line: bytes) -> None:
        """Write the whole line or nothing."""
        before = os.fstat(file).st_size
        try:
            written = os.write(file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError:
            os.ftruncate(file, before)
            raise

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        complete = data.rfind(b"\n") + 1  # bytes of complete lines
        if complete < len(data):
            os.truncate(path, complete)
        for number, line in enumerate(data[:complete].splitlines(), 1):
            try:
                record = json.loads(line)
                self._entries[_name(record["key"])] = record["entry"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is no measurement; remove the line or the file") from error


def _lock(file: FileIO, path: Path) -> None:
    """Lock the journal against other runs, if the system and the file system have locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"another run is writing to {path.parent}; wait for it or name another folder") from error
    except (ImportError, OSError):
        return


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"there is no space left for {path}; make room and run the same command again, it goes on there"
            raise ValueError(message) from error
        raise ValueError(f"cannot write {path}: {error.strerror or error}; name another folder with --out") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
