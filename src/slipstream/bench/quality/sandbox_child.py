"""The script that `sandbox.py` starts: restricts its own process, then runs the program that it receives.

Reads {"program", "token", "seconds", "memory", "file_bytes"} from standard input and writes the token after the program
has ended without an error. A program that tried something forbidden does not get the token, even if it caught the
error. It imports nothing from slipstream.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000  # flags of Linux's unshare
REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "ctypes.", "pty.")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.kill",
           "os.truncate", "shutil.")  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
violations: list[str] = []


def confine(seconds: float, memory: int, file_bytes: int) -> None:
    no_network()
    no_processes()
    limits(seconds, memory, file_bytes)
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
        resource.RLIMIT_NPROC: 0,  # neither processes nor threads; the system administrator is exempt
    }
    for resource_id, value in values.items():
        _, hard = resource.getrlimit(resource_id)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_id, (value, value))


def no_network() -> None:
    """Enter an empty network namespace, if the system allows it. The audit hook refuses sockets in any case."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)
    except (ImportError, OSError, AttributeError):
        return


def no_processes() -> None:
    """Refuse the function below `subprocess`, for which Python has no audit event."""
    try:
        import _posixsubprocess
    except ImportError:  # not a POSIX system
        return
    _posixsubprocess.fork_exec = _refuse_processes  # type: ignore[assignment, unused-ignore]


def _refuse_processes(*_: Any) -> None:
    refuse("fork_exec")


def refuse(action: str) -> None:
    violations.append(action)
    raise PermissionError(f"{action} is not allowed here")


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(REFUSED) or event.startswith(CHANGES):
        refuse(event)
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
        refuse("writing a file")


def main() -> None:
    job = json.load(sys.stdin)
    confine(job["seconds"], job["memory"], job["file_bytes"])
    exec(compile(job["program"], "answer", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
    if not violations:
        sys.stdout.write(job["token"])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
