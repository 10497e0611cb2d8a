"""Write a GGUF file in other types with the llama-quantize of the native build.

    python benchmarks/peers/requantise.py [MODEL] [--types Q4_0 Q8_0] [--library FOLDER]

MODEL is a GGUF file or a model of the catalogue. The files are written to `models` in the build's folder and kept. Q4_0
is the type that llama.cpp rearranges for the processor's instructions. All matrices get the type (`--pure`), as that is
the fastest. The weights are rounded once more, which changes the texts but not the speed.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from slipstream.engines.llamacpp.native_build import LlamaBuild, find_build
from slipstream.models.sources.gguf.files import gguf_file

TYPES = ("Q4_0", "Q8_0")


def native_build(library: str = "") -> LlamaBuild:
    build = find_build(library)
    if build is None:
        raise SystemExit("there is no native build of llama.cpp; benchmarks/peers/build_llamacpp.sh makes one")
    return build


def requantised(build: LlamaBuild, model: str, kind: str) -> Path:
    """The file of a model in another type, which is written the first time."""
    source, folder = gguf_file(model), build.folder / "models"
    target = folder / f"{source.stem}.{kind}.gguf"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        partial = target.with_suffix(".partial")
        command = [build.program("llama-quantize"), "--allow-requantize", "--pure", source, partial, kind]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        partial.rename(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--types", nargs="+", default=list(TYPES))
    parser.add_argument("--library", default="")
    args = parser.parse_args()
    for kind in args.types:
        print(requantised(native_build(args.library), args.model, kind))


if __name__ == "__main__":
    main()
