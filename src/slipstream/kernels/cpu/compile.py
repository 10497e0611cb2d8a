"""Compiles the C++ sources of this package at first use, for the processor they run on, and caches the libraries.

A library's name contains a hash of its sources, compiler, flags and processor, so a change of any of them makes a new
library. It is written to a temporary folder and renamed: processes that compile at the same time see whole files only.
A library that is damaged, or that another user may have written, is never loaded (`library`); it is compiled again.
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

X86 = platform.machine().lower() in ("x86_64", "amd64")
NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
# tuned for some processors (Zen 2 to 4, Alder Lake), GCC does not fuse products and sums of some loops, so that the
# bits of a sum would depend on the loop that it is computed in
ALWAYS_FUSED = "--param=avoid-fma-max-bits=0"
FLAGS = ("-std=c++17", "-O2", NATIVE, "-ffp-contract=fast", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")
SOURCES = Path(__file__).parent / "src"
RUNS = ("draft.cpp", "markov.cpp", "cycle_run.cpp", "rows_run.cpp")
PARTS = {"decoder.cpp": RUNS}  # further sources of a library, in the folder `runs`; it is named after its first one
WITH_ROW_BITS = ("linear.cpp", "decoder.cpp")  # libraries that differ by the bits of activations (`row_bits`)
CPU_FIELDS = {"model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant"}  # in /proc/cpuinfo
TIMEOUT = 120  # seconds for one run of the compiler
ADVICE = "set SLIPSTREAM_CACHE to a folder that only you can write to"
K = TypeVar("K")


class Unavailable(Exception):
    """A kernel cannot be compiled or loaded. The message is the reason, as a clause."""


def build(source: Path, row_bits: int = 16) -> Path:
    """The library of `source` and its `PARTS`, compiled now or earlier. `row_bits`: bits of the activations that are
    multiplied with weights of few bits."""
    compiler = _compiler()
    flags = (*_flags(compiler), *(() if row_bits == 16 else (f"-DROW_BITS={row_bits}",)))
    sources = (source, *(SOURCES / "runs" / part for part in PARTS.get(source.name, ())))
    headers = (SOURCES if source.is_relative_to(SOURCES) else source.parent).rglob("*.hpp")
    texts = [path.read_text(encoding="utf-8") for path in (*sources, *sorted(headers))]
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
            _run(*compiler, *flags, *map(str, sources), "-o", str(library))
            seal(library)
            os.replace(library, path)
    except OSError as error:
        raise Unavailable(f"{path.parent} cannot be used ({error.strerror or error}); {ADVICE}") from error
    return path


def _flags(compiler: list[str]) -> tuple[str, ...]:
    """The compiler's flags for this processor."""
    return (*FLAGS, ALWAYS_FUSED) if X86 and "clang" not in _version(*compiler).lower() else FLAGS


def function(path: Path, name: str, *arguments: Any) -> Any:
    """A function of a library that returns nothing."""
    try:
        symbol = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the kernel cannot be loaded ({error})") from error
    symbol.argtypes, symbol.restype = arguments, None
    return symbol


def load(make: Callable[[Path], K], source: Path, row_bits: int = 16) -> K | str:
    """A kernel made from a compiled library. If it cannot be compiled or fails its own check, the reason in a clause.
    The reason is also written to stderr once, since decoding without kernels is several times slower."""
    try:
        return make(build(source, row_bits=row_bits))
    except Unavailable as error:
        warn(f"compiled kernels are not used: {error}; decoding on this CPU is several times slower")
        return str(error)


def load_or_none(make: Callable[[Path], K], source: Path, row_bits: int = 16) -> K | None:
    """As `load`, with None instead of a reason."""
    kernel = load(make, source, row_bits)
    return None if isinstance(kernel, str) else kernel


def build_all(row_bits: int = 16) -> None:
    """Compile all libraries that are not in the cache, in parallel, since the first start waits for them. A library
    that cannot be compiled reports it later, when it is loaded."""

    def compile_library(source: Path, bits: int) -> None:
        with suppress(Unavailable):
            build(source, row_bits=bits)

    with suppress(Unavailable):
        _version(*_compiler())  # once, rather than in every thread
    parts = {part for names in PARTS.values() for part in names}
    sources = [source for source in sorted(SOURCES.rglob("*.cpp")) if source.name not in parts]
    libraries = [(source, 16) for source in sources]
    if row_bits != 16:
        libraries += [(source, row_bits) for source in sources if source.name in WITH_ROW_BITS]
    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_library, *zip(*libraries, strict=True)))


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} does not run ({type(error).__name__})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise Unavailable(f"{command[0]} fails: {next((line for line in lines if 'error' in line), lines[0])}")
    return done.stdout


@functools.cache
def _processor() -> str:
    """The processor, in the library's hash: a cache in a home folder may be shared by different machines."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(line for line in first.splitlines() if line.partition(":")[0].strip() in CPU_FIELDS)
