"""The folder of converted models. A model is built once, completely or not at all, by one process at a time.

A model is built in a hidden folder and renamed to its final path, which is atomic, so a reader sees either nothing or a
complete model. Builders hold a lock file: a second process waits, and then uses what the first one built.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.kernels.cpu.library import make_folder

LAYOUT = 3  # version of the conversion; from 3 on, folders may hold packed weights (`gguf.packed`)
READABLE = (2, LAYOUT)  # folders of other versions are converted again
MANIFEST, WEIGHTS = "slipstream.json", "model.safetensors"
DAY = 24 * 3600


class CatalogError(ValueError):
    """A model is not available; the message is one sentence for the user."""


def home() -> Path:
    """Where models are kept: $SLIPSTREAM_CACHE, else $XDG_CACHE_HOME/slipstream, else ~/.cache/slipstream."""
    if own := os.environ.get("SLIPSTREAM_CACHE"):
        return Path(own).expanduser() / "models"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipstream" / "models"


def manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest that `build` wrote into a folder; None where there is none, or one of an older layout."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("layout") in READABLE else None


def build(folder: Path, make: Callable[[Path], dict[str, Any]], need: int = 0, again: bool = False) -> Path:
    """Build `folder` by `make(temporary folder) -> manifest`, unless it exists. `again` builds it in any case.

    `need` is the disk space in bytes.
    """
    if manifest(folder) is not None and not again:
        return folder
    with readable_errors(folder):
        make_folder(folder.parent)
        with locked(folder) as alone:
            if manifest(folder) is not None and not again:  # built by another process while this one waited
                return folder
            _sweep(folder, alone)
            _check_room(folder.parent, need)
            with written_atomically(folder) as partial:
                write_manifest(partial, make(partial))
    return folder


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest of a folder: facts, and size and sha256 of every file."""
    about = {"layout": LAYOUT, **facts, "files": _checksums(folder)}
    if WEIGHTS in about["files"]:
        about["sha256"] = about["files"][WEIGHTS]["sha256"]
    (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Wait for the builder's lock of a folder; False where the file system or the platform has no locks."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: the rename is still atomic
        yield False
        return
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # some network file systems
            yield False
            return
        yield True


@contextmanager
def readable_errors(place: Path) -> Iterator[None]:
    """Turn errors of the operating system into one sentence for the user."""
    try:
        yield
    except CatalogError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error):  # the latter from safetensors
            message = f"the disk is full: {place.parent} has {_free(place.parent) / 1e6:.0f} MB left; make room there"
            raise CatalogError(f"{message} or set SLIPSTREAM_CACHE to another folder") from error
        if isinstance(error, OSError):
            message = f"{error.filename or place} cannot be written or read ({error.strerror or error})"
            raise CatalogError(f"{message}; SLIPSTREAM_CACHE names the folder that models are kept in") from error
        raise


@contextmanager
def written_atomically(folder: Path) -> Iterator[Path]:
    """A hidden folder that is renamed to `folder` at the end, or removed if an error occurs."""
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        partial.chmod(0o755)
        yield partial
        _flush(partial)
        remove_tree(folder)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(folder: Path, alone: bool) -> None:
    """Remove what killed processes left: of this model at once if we hold its lock, of others after a day."""
    for partial in folder.parent.glob(".*.partial"):
        of_this_model = alone and partial.name.startswith(f".{folder.name}.")
        if of_this_model or time.time() - partial.stat().st_mtime > DAY:
            shutil.rmtree(partial, ignore_errors=True)


def _free(place: Path) -> int:
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _check_room(place: Path, need: int) -> None:
    if _free(place) < need:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))


def _flush(folder: Path) -> None:
    """Sync the files to the disk before the rename, so that a power cut leaves no empty files."""
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner only
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def remove_tree(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that no reader sees a part of it."""
    if not folder.exists():
        return
    gone = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    os.rename(folder, gone / folder.name)
    shutil.rmtree(gone)


def _checksums(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of every file, by name."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
