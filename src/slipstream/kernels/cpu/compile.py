"""Compiles the C++ sources of this package at first use, for the processor they run on, and keeps the libraries.

A library is named by all that went into it, so an update of the source, the compiler or the machine makes a new one.
It is written beside its place and renamed into it: two processes that compile at once each see whole files only. A
library that is damaged or that another user may have put there is never loaded (`library`); it is compiled again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from slipstream.kernels.cpu.library import is_intact, make_folder, seal, why_unsafe, why_unsafe_folder
from slipstream.kernels.machine import warn

NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
FLAGS = ("-std=c++17", "-O2", NATIVE, "-ffp-contract=fast", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")
SHORT = (
    "linear.cpp",
    "decoder.cpp",
)  # that know products of whole numbers: for activations of eight bits, other libraries
IDENTITY = {"model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant"}  # in /proc/cpuinfo
PATIENCE = 120  # seconds
ADVICE = "set SLIPSTREAM_CACHE to a folder that only you can write to"
K = TypeVar("K")


class Unavailable(Exception):
    """The message says why, in a clause."""


def build(source: Path, row_bits: int = 16) -> Path:
    """The library compiled from `source`, now or earlier. `row_bits`: of the activations that weights of few bits
    meet."""
    compiler, flags = _compiler(), FLAGS if row_bits == 16 else (*FLAGS, f"-DROW_BITS={row_bits}")
    texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.hpp")))]
    key = "\0".join((*texts, *compiler, *flags, _version(*compiler), _processor()))
    path = folder().resolve() / f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        make_folder(path.parent)
        if reason := why_unsafe_folder(path.parent):
            raise Unavailable(f"{reason}; {ADVICE}")
        if is_intact(path) and why_unsafe(path) is None:
            return path
        with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as partial:
            library = Path(partial) / path.name
            _run(*compiler, *flags, str(source), "-o", str(library))
            seal(library)
            os.replace(library, path)
    except OSError as error:
        raise Unavailable(f"{path.parent} cannot be used ({error.strerror or error}); {ADVICE}") from error
    return path


def function(path: Path, name: str, *arguments: Any) -> Any:
    """A function of a library that gives nothing back."""
    try:
        found = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the kernel cannot be loaded ({error})") from error
    found.argtypes, found.restype = arguments, None
    return found


def load(make: Callable[[Path], K], source: Path, row_bits: int = 16) -> K | str:
    """A kernel made of a compiled source. Where it cannot be compiled or fails its own check, the reason in a clause,
    which is also written to stderr once: what runs without kernels is several times slower."""
    try:
        return make(build(source, row_bits=row_bits))
    except Unavailable as error:
        warn(f"compiled kernels are not used: {error}; decoding on this CPU is several times slower")
        return str(error)


def had(make: Callable[[Path], K], source: Path, row_bits: int = 16) -> K | None:
    """As `load`, with None for a reason."""
    kernel = load(make, source, row_bits)
    return None if isinstance(kernel, str) else kernel


def build_all(row_bits: int = 16) -> None:
    """Compile what is not kept yet, side by side: the first start is waited for. Who cannot be compiled says so later,
    to those who ask for it."""

    def one(wanted: tuple[Path, int]) -> None:
        with suppress(Unavailable):
            build(wanted[0], row_bits=wanted[1])

    with suppress(Unavailable):
        _version(*_compiler())  # once, rather than in every thread
    folder = Path(__file__).parent / "src"
    sources = [(source, 16) for source in sorted(folder.glob("*.cpp"))]
    if row_bits != 16:
        sources += [(folder / name, row_bits) for name in SHORT]
    with ThreadPoolExecutor() as pool:
        list(pool.map(one, sources))


def folder() -> Path:
    """Where libraries are kept: $SLIPSTREAM_CACHE, else $XDG_CACHE_HOME/slipstream, else ~/.cache/slipstream."""
    if own := os.environ.get("SLIPSTREAM_CACHE"):
        return Path(own).expanduser() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipstream" / "kernels"


def _compiler() -> list[str]:
    if own := shlex.split(os.environ.get("CXX", "")):
        return own
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise Unavailable("no C++ compiler on PATH")


@functools.cache
def _version(*compiler: str) -> str:
    return _run(*compiler, "--version")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} does not run ({type(error).__name__})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise Unavailable(f"{command[0]} fails: {next((line for line in lines if 'error' in line), lines[0])}")
    return done.stdout


@functools.cache
def _processor() -> str:
    """What `native` means here; a cache in a home folder may be shared by different machines."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(line for line in first.splitlines() if line.partition(":")[0].strip() in IDENTITY)
