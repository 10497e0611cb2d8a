"""A compiled package: all that the next start of a model needs, in one file, as this machine's kernels read it.

Loading a model on a CPU means importing transformers, reading its weights, finding those of few bits, packing them and
comparing the packed layers with the modules. None of that changes from one start to the next. A package holds what came
out of it (`skeleton`, `words`); its tensors are read where they lie in the file, and nothing is copied.

A package is named by everything it depends on: the kernels as they were compiled for this processor, the sources of
this code, the libraries and the model's files. Whatever changes, another name is looked for, and what is not found is
made anew. It is written under another name and renamed, and its sum is written last, so half of one is never opened.
Whatever is wrong with a package, the model is loaded whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from slipstream.core.shapes import Tensor
from slipstream.kernels import cpu_decoder, cpu_linear
from slipstream.kernels.compile import Unavailable, build
from slipstream.kernels.machine import say
from slipstream.models import linears, store
from slipstream.models.load import Found, configured_ends, load_tokenizer
from slipstream.models.refuse import Anatomy
from slipstream.models.skeleton import Bones, Skeleton, Unfit, assemble, take
from slipstream.models.text import Text
from slipstream.models.torch_model import TorchModel
from slipstream.models.words import Words, taken

MAGIC = b"slipstream 1"
ALIGN = 64  # bytes: as torch aligns what it allocates
LIBRARIES = ("torch", "transformers", "tokenizers")
SUFFIX, PARTIAL, WORDS = ".package", ".partial", "tokenizer"
DAY, KEPT = 24 * 3600, 2

Opened = tuple[Skeleton, Anatomy, Text]


def open_package(found: Found, row_bits: int = 16) -> Opened | None:
    """The model in its package, to run with activations of `row_bits`; None where there is none, or none that can be
    used."""
    try:
        path = place(found, row_bits)
        facts, tensors = _read(path)
        skeleton, anatomy = assemble(Bones(facts["bones"], tensors))
        full = functools.cache(lambda: load_tokenizer(found))
        words = Words(tensors.pop(WORDS).numpy().tobytes().decode(), facts["words"], full)
        text = Text(words, configured_ends(found), full)
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


def write_package(found: Found, model: TorchModel, text: Text) -> Path:
    """Write a model that was loaded whole; Unfit where it is not of the kind that a package can hold."""
    if found.trust_remote_code:
        raise Unfit("it brings its own code")
    words = taken(text.tokenizer)
    if words is None:
        raise Unfit("its tokenizer is not one of the tokenizers library alone")
    bones = take(model)
    source = torch.frombuffer(bytearray(words[0].encode()), dtype=torch.uint8)
    path = place(found, linears.row_bits(model.model))
    facts = {"path": str(found.path), "bones": bones.facts, "words": words[1]}
    with store.spoken(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, lambda partial: _write(partial, facts, {WORDS: source, **bones.tensors}))
    _tidy(found.path)
    say(f"package: written, {path.stat().st_size / 1e6:.0f} MB ({path})")
    return path


def forget(folder: Path) -> None:
    """Remove the packages of a model's folder."""
    for path in home().glob(f"{folder.name}-*{SUFFIX}"):
        with suppress(OSError, ValueError):
            if _about(path).get("path") == str(folder):
                path.unlink()


def home() -> Path:
    return store.home().parent / "packages"


def place(found: Found, row_bits: int = 16) -> Path:
    """Where the package of a model is, or would be."""
    libraries = [build(module.SOURCE, row_bits=row_bits).name for module in (cpu_linear, cpu_decoder)]
    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    files = sorted((path.name, (about := path.stat()).st_size, about.st_mtime_ns) for path in found.path.iterdir())
    key = [*libraries, *versions, _sources(), str(found.path), str(found.sha256), str(files)]
    return home() / f"{found.path.name}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:16]}{SUFFIX}"


def _sources() -> str:
    """The hash of the code that makes and reads packages."""
    folder = Path(__file__).parent
    files = (*sorted(folder.glob("*.py")), *sorted((folder.parent / "kernels").glob("*.py")))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _write(path: Path, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Tensors first, each at its place, then what they are, then how long that is."""
    index: dict[str, tuple[str, list[int], int]] = {}
    total, end = 0, 0
    with open(path, "wb") as file:
        for name, tensor in tensors.items():
            flat = tensor.contiguous().flatten().view(torch.uint8)
            if beyond := -len(flat) % ALIGN:
                flat = torch.cat([flat, flat.new_zeros(beyond)])
            index[name] = str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end
            file.write(flat.numpy())  # type: ignore[arg-type]
            total, end = total + _sum(flat), end + flat.nbytes
        about = json.dumps({**facts, "tensors": index, "bytes": end, "sum": total % 2**64}).encode()
        file.write(about + len(about).to_bytes(8, "little") + MAGIC)


def _about(path: Path) -> dict[str, Any]:
    """What the end of a package says of it; nothing where it is none."""
    tail = 8 + len(MAGIC)
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        end = file.read()
        length = int.from_bytes(end[:8], "little")
        if end[8:] != MAGIC or length > size - tail:
            return {}
        file.seek(size - tail - length)
        about = json.loads(file.read(length))
    whole = isinstance(about, dict) and about.get("bytes") == size - tail - length
    return about if whole else {}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    about = _about(path)
    if not about:
        raise ValueError(f"{path} is not whole")
    data = torch.from_file(str(path), shared=False, size=about["bytes"], dtype=torch.uint8)
    if _sum(data) % 2**64 != about["sum"]:
        raise ValueError(f"{path} is damaged")
    return about, {name: _tensor(data, *entry) for name, entry in about["tensors"].items()}


def _tensor(data: Tensor, kind: str, shape: list[int], start: int) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    size = torch.Size(shape).numel() * dtype.itemsize
    return data[start : start + size].view(dtype).view(shape)


def _sum(data: Tensor) -> int:
    """Of the words of eight bytes: any bit that flips changes it, and it takes no longer than to read them."""
    return int(data.view(torch.int64).sum())


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
        mine = [path for path in home().glob(f"{folder.name}-*{SUFFIX}") if _about(path).get("path") == str(folder)]
        for path in sorted(mine, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            path.unlink()
