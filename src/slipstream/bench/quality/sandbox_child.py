"""The script that `sandbox.py` starts: restricts its own process, then runs the program that it receives.

Reads {"program", "token", "seconds", "memory", "file_bytes"} from standard input and writes the token after the program
has ended without an error. It imports nothing from slipstream.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "ctypes.", "pty.")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.kill",
           "os.truncate", "shutil.")  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def confine(seconds: float, memory: int, file_bytes: int) -> None:
    limits(seconds, memory, file_bytes)
    no_network()
    sys.addaudithook(watch)  # an audit hook cannot be removed


def limits(seconds: float, memory: int, file_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system; the time limit of the parent remains
        return
    values = {
        resource.RLIMIT_CPU: int(seconds) + 1,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 32,
    }
    for resource_id, value in values.items():
        _, hard = resource.getrlimit(resource_id)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_id, (value, value))


def no_network() -> None:
    """Enter an empty network namespace, if the system allows it. The audit hook refuses sockets in any case."""
    unshare: Any = getattr(os, "unshare", None)  # Python 3.12
    if unshare is None:
        return
    try:
        unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(REFUSED) or event.startswith(CHANGES):
        raise PermissionError(f"{event} is not allowed here")
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
        raise PermissionError("files may be read, not written")


def main() -> None:
    job = json.load(sys.stdin)
    confine(job["seconds"], job["memory"], job["file_bytes"])
    exec(compile(job["program"], "answer", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
    sys.stdout.write(job["token"])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
