"""Compiled libraries as files that are safe to load.

Loading a library runs its code, and a truncated one ends the process with SIGBUS. So a library carries its size and its
sha256 in a trailer, which the dynamic linker ignores, and is loaded only if both agree. The hash detects damage; it is
not a signature. To keep out other users' code, only files and folders that no other user can write to are trusted.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path

TAG = b"slipstream library 1"
TRAILER = 8 + 32 + len(TAG)  # bytes: the size of the library, its sha256, the tag
READABLE = 0o755  # mode of cached files and folders: only their owner may write


def seal(path: Path) -> None:
    """Append the trailer to a compiled library and sync the file to disk before it is renamed."""
    data = path.read_bytes()
    with open(path, "ab") as file:
        file.write(len(data).to_bytes(8, "little") + hashlib.sha256(data).digest() + TAG)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(READABLE)


def is_intact(path: Path) -> bool:
    """Whether a file is a complete library as `seal` wrote it."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    body, trailer = data[:-TRAILER], data[-TRAILER:]
    return trailer == len(body).to_bytes(8, "little") + hashlib.sha256(body).digest() + TAG


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents so that only their owner can write, whatever the umask is."""
    for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
        missing.mkdir(mode=READABLE, exist_ok=True)


def why_unsafe_folder(folder: Path) -> str | None:
    """Why libraries of a folder must not be loaded, in a clause; None if they may be.

    Whoever can write to the folder can replace a library, and whoever can write to its parent can replace the folder.
    A sticky parent, such as /tmp, lets nobody rename what belongs to others.
    """
    parent = why_unsafe(folder.parent)
    if parent and not _is_sticky(folder.parent):
        return parent
    return why_unsafe(folder)


def why_unsafe(path: Path) -> str | None:
    """Why a file or folder may be under the control of another user, in a clause; None if it is not."""
    if sys.platform == "win32":  # no owners and modes of this kind
        return None
    about = path.stat()
    if about.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user (uid {about.st_uid})"
    if about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and not _is_private(about.st_gid)):
        return f"other users can write to {path} (mode {stat.S_IMODE(about.st_mode):o})"
    return None


def _is_sticky(folder: Path) -> bool:
    about = folder.stat()
    return bool(about.st_mode & stat.S_ISVTX) and about.st_uid in (0, os.geteuid())


def _is_private(group_id: int) -> bool:
    """Whether a group is the user's own. Systems with such groups often make all new files writable by the group."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
