"""A compiled package: all that the next start of a model needs, in one file, as this machine's kernels read it.

Loading a model on a CPU means importing transformers, reading its weights, finding those of few bits, packing them and
comparing the packed layers with the modules. None of that changes from one start to the next. A package holds what came
out of it (`skeleton`, `words`); its tensors are read where they lie in the file, and nothing is copied.

A package is named by everything it depends on: the kernels as they were compiled for this processor, the sources of
this code, the libraries and the model's files. Whatever changes, another name is looked for, and what is not found is
made anew. It is written under another name and renamed, and every start checks its hash (`package_file`). Whatever is
wrong with a package, the model is loaded whole.
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

import torch

from slipstream.kernels.cpu import decoder as cpu_decoder
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.cpu.compile import Unavailable, build
from slipstream.kernels.cpu.library import make_folder
from slipstream.kernels.machine import say
from slipstream.models.compiled import package_file
from slipstream.models.compiled.skeleton import NotCompilable, Skeleton, SkeletonParts, assemble, take
from slipstream.models.run.support_check import ModelAnatomy
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources import store
from slipstream.models.sources.load import ModelFiles, configured_ends, load_tokenizer
from slipstream.models.sources.verify import FileCheck
from slipstream.models.text.codec import TextCodec
from slipstream.models.text.light_tokenizer import LightTokenizer, taken
from slipstream.models.weights import linears

LIBRARIES = ("torch", "transformers", "tokenizers")
SUFFIX, PARTIAL, WORDS = ".package", ".partial", "tokenizer"
DAY, KEPT = 24 * 3600, 2

Opened = tuple[Skeleton, ModelAnatomy, TextCodec]


def open_package(found: ModelFiles, row_bits: int = 16) -> Opened | None:
    """The model in its package, to run with activations of `row_bits`; None where there is none, or none that can be
    used."""
    try:
        path = place(found, row_bits)
        facts, tensors = package_file.read(path)
        skeleton, anatomy = assemble(SkeletonParts(facts["bones"], tensors))
        full = functools.cache(lambda: load_tokenizer(found))
        words = LightTokenizer(tensors.pop(WORDS).numpy().tobytes().decode(), facts["words"], full)
        text = TextCodec(words, configured_ends(found), full)
    except FileNotFoundError:
        say("package: none yet; the model is loaded whole")
    except Unavailable as error:
        say(f"package: none without kernels ({error}); the model is loaded whole")
    except Exception as error:  # whatever a damaged file brings about, of three libraries
        say(f"package: not usable ({error}); the model is loaded whole")
    else:
        say(f"package: {path}")
        with suppress(OSError):
            os.utime(path)  # in use: see `_tidy`
        return skeleton, anatomy, text
    return None


def write_package(found: ModelFiles, model: TorchModel, text: TextCodec) -> Path:
    """Write a model that was loaded whole; Unfit where it is not of the kind that a package can hold."""
    if found.trust_remote_code:
        raise NotCompilable("it brings its own code")
    words = taken(text.tokenizer)
    if words is None:
        raise NotCompilable("its tokenizer is not one of the tokenizers library alone")
    bones = take(model)
    source = torch.frombuffer(bytearray(words[0].encode()), dtype=torch.uint8)
    path = place(found, linears.row_bits(model.model))
    facts = {"path": str(found.path), "bones": bones.facts, "words": words[1]}
    with store.spoken(path):
        make_folder(path.parent)
        _put(path, lambda partial: package_file.write(partial, facts, {WORDS: source, **bones.tensors}))
    _tidy(found.path)
    say(f"package: written, {path.stat().st_size / 1e6:.0f} MB ({path})")
    return path


def forget(folder: Path) -> None:
    """Remove the packages of a model's folder."""
    with suppress(OSError):
        for path in _packages(folder):
            path.unlink()


def check_integrity(folder: Path) -> list[FileCheck]:
    """Compare the packages of a model's folder with their own hashes. Those of other versions are never opened, and
    without compiled kernels none is: they are not checked."""
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
    """The packages of a model's folder, and those named like them that are too damaged to tell."""
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


def place(found: ModelFiles, row_bits: int = 16) -> Path:
    """Where the package of a model is, or would be."""
    libraries = [build(module.SOURCE, row_bits=row_bits).name for module in (cpu_linear, cpu_decoder)]
    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    files = sorted((path.name, (about := path.stat()).st_size, about.st_mtime_ns) for path in found.path.iterdir())
    key = [*libraries, *versions, _sources(), str(found.path), str(found.sha256), str(files)]
    return home() / f"{found.path.name}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:16]}{SUFFIX}"


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
    """Drop what nobody looks for any more: what killed processes left, and packages of a model beyond those used last
    (another machine may share this folder)."""
    with suppress(OSError, ValueError):
        for path in home().glob(f".*{PARTIAL}"):
            if time.time() - path.stat().st_mtime > DAY:
                path.unlink()
        for path in sorted(_packages(folder), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            path.unlink()
