"""A compiled package: everything the next start of a model needs, in one file, in the layout of this machine's kernels.

Loading a model on a CPU imports transformers, reads the weights, finds the quantised ones, packs them and compares the
packed layers with the modules. The result is the same at every start. A package holds it (`skeleton`,
`light_tokenizer`). Its tensors are used directly in the mapped file, without a copy.

A package's name is a hash of everything it depends on: the compiled kernels, the sources of this code, the libraries
and the model's files. If any of them changes, the name changes, and a new package is written. It is written under a
temporary name and renamed, and every start checks its hash (`package_file`). If a package cannot be used, the model is
loaded in full.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from slipstream.kernels.cpu import decoder as cpu_decoder
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.cpu.compile import Unavailable, build
from slipstream.kernels.cpu.library import make_folder
from slipstream.kernels.machine import return_freed_memory, say
from slipstream.models.compiled import package_file
from slipstream.models.compiled.skeleton import NotCompilable, Skeleton, SkeletonParts, assemble, take
from slipstream.models.run.support_check import ModelAnatomy
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources import store
from slipstream.models.sources.load import ModelFiles, configured_ends, load_tokenizer
from slipstream.models.sources.verify import FileCheck
from slipstream.models.text.codec import TextCodec
from slipstream.models.text.light_tokenizer import LightTokenizer, tokenizer_parts
from slipstream.models.weights import linears

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LIBRARIES = ("torch", "transformers", "tokenizers")
SUFFIX, PARTIAL = ".package", ".partial"
TOKENIZER = "tokenizer"  # the name of the tokenizer's tensor, and of its facts
DAY, KEPT = 24 * 3600, 2  # seconds; packages kept per model

Opened = tuple[Skeleton, ModelAnatomy, TextCodec]


class FullTokenizer:
    """Loads transformers' tokenizer when it is first called. It can be sent to another process."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files

    def __call__(self) -> PreTrainedTokenizerBase:
        return self._loaded

    @functools.cached_property
    def _loaded(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self._files)


def open_package(files: ModelFiles, row_bits: int = 16) -> Opened | None:
    """The model in its package, for activations of `row_bits` bits; None if there is no usable package."""
    try:
        path = place(files, row_bits)
        facts, tensors = package_file.read(path)
        skeleton, anatomy = assemble(SkeletonParts(facts["skeleton"], tensors))
        full = FullTokenizer(files)
        light = LightTokenizer(tensors.pop(TOKENIZER).numpy().tobytes().decode(), facts[TOKENIZER], full)
        return_freed_memory()  # what parsing the tokenizer took
        text = TextCodec(light, configured_ends(files), full)
    except FileNotFoundError:
        say("package: none yet; the model is loaded in full")
    except Unavailable as error:
        say(f"package: none without kernels ({error}); the model is loaded in full")
    except Exception as error:  # three libraries raise many classes for a damaged file
        say(f"package: not usable ({error}); the model is loaded in full")
    else:
        say(f"package: {path}")
        with suppress(OSError):
            os.utime(path)  # in use: see `_tidy`
        return skeleton, anatomy, text
    return None


def write_package(files: ModelFiles, model: TorchModel, text: TextCodec) -> Path:
    """Write the package of a model that was loaded in full. NotCompilable if a package cannot hold it."""
    if files.trust_remote_code:
        raise NotCompilable("it brings its own code")
    light = tokenizer_parts(text.tokenizer)
    if light is None:
        raise NotCompilable("its tokenizer needs more than the tokenizers library")
    parts = take(model)
    source = torch.frombuffer(bytearray(light[0].encode()), dtype=torch.uint8)
    path = place(files, linears.row_bits(model.model))
    facts = {"path": str(files.path), "skeleton": parts.facts, TOKENIZER: light[1]}
    with store.readable_errors(path):
        make_folder(path.parent)
        _put(path, lambda partial: package_file.write(partial, facts, {TOKENIZER: source, **parts.tensors}))
    _tidy(files.path)
    say(f"package: written, {path.stat().st_size / 1e6:.0f} MB ({path})")
    return path


def forget(folder: Path) -> None:
    """Remove the packages of a model's folder."""
    with suppress(OSError):
        for path in _packages(folder):
            path.unlink()


def check_integrity(folder: Path) -> list[FileCheck]:
    """Compare the packages of a model's folder with their own hashes.

    Packages of other versions are not checked. Without compiled kernels, packages are not used and not checked."""
    checks: list[FileCheck] = []
    for path in _packages(folder):
        problem = None
        try:
            package_file.read(path)
        except (Unavailable, package_file.OtherVersion) as error:
            say(f"package: not checked ({error})")
            continue
        except (OSError, ValueError):
            problem = "is damaged; it is not used, and the next start of the model writes it again"
        checks.append(FileCheck(path.name, path.stat().st_size, recorded=True, problem=problem))
    return checks


def _packages(folder: Path) -> Iterator[Path]:
    """The packages of a model's folder, and damaged ones with a matching name."""
    name = re.compile(re.escape(folder.name) + "-[0-9a-f]{16}" + re.escape(SUFFIX))
    for path in sorted(home().glob(f"*{SUFFIX}")):
        if name.fullmatch(path.name):
            try:
                own = package_file.read_index(path).get("path") == str(folder)
            except (OSError, ValueError):
                own = True
            if own:
                yield path


def home() -> Path:
    return store.home().parent / "packages"


def place(files: ModelFiles, row_bits: int = 16) -> Path:
    """The path of a model's package, whether it exists or not."""
    libraries = [build(module.SOURCE, row_bits=row_bits).name for module in (cpu_linear, cpu_decoder)]
    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    listing = sorted((path.name, (about := path.stat()).st_size, about.st_mtime_ns) for path in files.path.iterdir())
    key = [*libraries, *versions, _sources(), str(files.path), str(files.sha256), str(listing)]
    return home() / f"{files.path.name}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:16]}{SUFFIX}"


def _sources() -> str:
    """The hash of the code that makes and reads packages."""
    models = Path(__file__).parents[1]
    files = (*sorted(models.rglob("*.py")), *sorted((models.parent / "kernels" / "cpu").glob("*.py")))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _put(path: Path, write: Callable[[Path], None]) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=PARTIAL, dir=path.parent)
    os.close(handle)
    try:
        write(Path(name))
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """Remove what killed processes left, and all but the last used packages of a model. More than one is kept, since
    another machine may share this folder."""
    with suppress(OSError, ValueError):
        for path in home().glob(f".*{PARTIAL}"):
            if time.time() - path.stat().st_mtime > DAY:
                path.unlink()
        for path in sorted(_packages(folder), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            path.unlink()
